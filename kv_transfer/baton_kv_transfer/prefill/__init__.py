"""The prefill worker's side of every hand-over.

Owns `machine` (pure), its `records`, the `transfer` that runs it, the `carrier` of its puts and the links to its
`peers`. Never registers memory for remote writing.
Called by the prefill worker's process.
"""
