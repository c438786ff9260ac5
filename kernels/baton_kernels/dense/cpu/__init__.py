"""Fast CPU paths of dense layers."""
