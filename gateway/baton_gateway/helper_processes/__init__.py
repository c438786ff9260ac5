"""Helper processes of a gateway: untrusted text is rendered, tokenised and compiled in processes that can be killed.

Owns their pipes, deadlines and processor time, and the lock that shares each of them fairly among clients.
Never knows what a request means.
Called by `text` and `structured_outputs`.
"""
