"""One door per op: formula, shapes, bytes moved, the torch reference (the specification), and the choice of backend.

Backends stand behind the doors: `gpu` (Triton), `cpu` (torch, where the reference is too slow to serve with) and
`cpu.compiled` (LLVM).
"""
