"""Triton kernels of attention."""
