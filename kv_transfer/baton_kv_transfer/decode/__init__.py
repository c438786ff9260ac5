"""The decode worker's side of every hand-over.

Owns `machine` (pure) with its `records` and `spans`, the `transfer` that runs it and the links from its
`peers`.
Never admits KV that was not verified.
Called by the decode worker's process.
"""
