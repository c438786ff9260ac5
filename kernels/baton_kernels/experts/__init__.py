"""Layers of experts: routing, sorting and the grouped products."""
