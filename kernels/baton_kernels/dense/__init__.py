"""Dense layers: products with plain and quantised weights, norms and activations."""
