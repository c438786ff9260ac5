"""The decode worker's side of every hand-over.

Owns `machine` (pure) with its `records` and `spans`, the `group` of the machines of several `ranks` (pure), the
`transfer` that runs them and the links from `peers`.
Never admits KV that was not verified.
Called by the decode worker's process.
"""
