"""Carries step plans out on one device: forward pass, sampling, captured graphs, timing.

Owns the device's streams, buffers and captured graphs.
Never decides what is computed.
Called by the worker's engine thread.
"""
