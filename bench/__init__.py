"""Measurements with one command each; `python -m bench` runs them all. Nothing here is imported by the product."""
