"""The decode worker: reservations and landed KV blocks in, the token loop out."""
