"""What crosses between processes: messages, keys, handshake, liveness, discovery, fingerprint, sketches.

Owns every type that one process sends and another reads, and the proof that both may talk.
Never computes tokens, decides about pools or moves KV bytes, and imports no other package of Baton.
Called by every process: gateways, workers, the operator and the laptop runtime.
"""
