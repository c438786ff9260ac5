"""Attention over the paged KV pool: prefill, decode, RoPE and the writing of KV."""
