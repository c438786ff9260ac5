"""Text of one model revision: bundle, chat template, token ids, and the text of tokens while they come.

Owns everything that turns text into ids and back, and the helper processes that do it for untrusted input.
Never knows which client asks or where tokens are computed.
Called by `requests` and by `baton batch`.
"""
