"""Everything that crosses between processes: messages, keys, handshake, liveness, discovery, fingerprint, sketches; and
what a model's config.json says, which all of them read alike.

Owns every type that one process sends and another reads, and the proof that both may talk.
Never computes tokens, decides about pools or moves KV bytes, and imports no other package of Baton.
Called by every process: gateways, workers, the operator and the laptop runtime.
"""
