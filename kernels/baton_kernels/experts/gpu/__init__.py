"""Triton kernels of expert layers."""
