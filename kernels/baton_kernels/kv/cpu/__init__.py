"""Fast CPU paths of KV copies."""
