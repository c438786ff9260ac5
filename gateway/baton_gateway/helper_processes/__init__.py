"""Helper processes of a gateway: untrusted text is rendered, tokenised and compiled in processes that can be killed.

Owns their pipes, their deadlines, their processor time and whose turn it is to use them.
Never knows what a request means.
Called by `text` and `structured_outputs`.
"""
