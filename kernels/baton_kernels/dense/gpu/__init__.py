"""Triton kernels of dense layers."""
