"""The prefill worker's side of every hand-over.

Owns `machine` (pure), its `records`, the `group` of the machines of several `ranks` (pure), the `transfer` that runs
them, the `carrier` of their puts and the links to `peers`. Never registers memory for remote writing.
Called by the prefill worker's process.
"""
