"""The hand-over of KV from a prefill to a decode worker: layout, machines of both sides, drivers, transports.

Owns every byte of KV between two pools, its coverage and its proof.
Never computes KV, picks workers or talks to gateways.
Called by the two workers.
"""
