"""Fast CPU paths of sampling."""
