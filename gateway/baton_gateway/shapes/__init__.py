"""What an answer must look like: schemas, regular expressions, choices and grammars of clients to what workers match.

`shape_compiler` is the way in. Everything that reads a client's definition runs in a process apart, `shape_process`.
"""
