"""Kernels compiled before they are needed: for a described GPU, into a folder that workers read."""
