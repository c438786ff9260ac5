"""Fast CPU paths of attention."""
