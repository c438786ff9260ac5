"""`baton quality`: how far a model's answers are from a reference's, asked through gateway, prefill and decode workers.

It serves one after the other, or asks deployments that run already. It computes no logits: `comparison` works on what
the API tells. `measuring` is called by the command line alone.
"""
