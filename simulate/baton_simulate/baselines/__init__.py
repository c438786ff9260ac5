"""Published scaling rules of other systems, as baselines for comparison. Pure; nothing in production uses them."""
