"""The prefill worker: prompts in, KV blocks and the first token out."""
