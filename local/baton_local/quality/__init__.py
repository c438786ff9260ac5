"""`baton quality`: compares a model's answers with a reference's, through gateway, prefill and decode workers.

It serves one after the other, or uses running deployments. It computes no logits: `comparison` works on the log
probabilities of the API. `measuring` is called by the command line alone.
"""
