"""Files and batches of requests: what clients upload, what is answered of it, and where both are on disk.

The room stores them in one folder that gateway processes share, and decides which process runs a batch and which line
comes next. It never talks HTTP and never answers a line itself: the HTTP room does both.
"""
