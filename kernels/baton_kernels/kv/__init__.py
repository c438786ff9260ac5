"""KV blocks as bytes: copies, checksums, scales and units."""
