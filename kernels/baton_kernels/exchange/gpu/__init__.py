"""Triton kernels of KV copies."""
