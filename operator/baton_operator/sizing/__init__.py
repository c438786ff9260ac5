"""How many workers each pool should have. Pure."""
