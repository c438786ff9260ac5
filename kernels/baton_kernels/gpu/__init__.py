"""Triton kernels and their launchers, imported only when a tensor is on a GPU (or under the interpreter, by
tests)."""
