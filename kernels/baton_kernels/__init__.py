"""One door per op: formula, shapes, bytes moved, the torch reference (the specification), and the choice of backend.

Each family of ops has a room with its doors and their backends: `gpu` (Triton) and `cpu` (torch, where the reference
is too slow to serve, or compiled by LLVM).
"""
