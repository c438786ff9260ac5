"""Text of one model revision: bundle, chat template, token ids, and text again while tokens come.

Owns everything that turns text into ids and back.
Never knows who asks or where tokens are computed.
Called by `requests` and by `baton batch`.
"""
