"""Fast CPU paths, for the ops whose torch reference is too slow to serve with."""
