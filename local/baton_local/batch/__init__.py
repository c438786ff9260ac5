"""`baton batch`: files of requests answered by one engine in one process.

Owns the format of the files, the order of requests and the resumption of a batch; changes no bytes of a file that it
did not write.
Never opens a port.
Called by the command line and the offline benchmark.
"""
