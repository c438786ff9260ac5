"""`baton batch`: files of requests answered by one engine in one process.

Owns the files' format, order and resumption; touches no bytes of a file that it did not write.
Never opens a port.
Called by the command line and the offline benchmark.
"""
