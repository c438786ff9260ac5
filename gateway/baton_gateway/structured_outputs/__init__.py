"""What an answer must look like: schemas, regular expressions, choices and grammars of clients to what workers match.

`format_compiler` is the way in. Everything that reads a client's definition runs in a process apart,
`format_compiler_main`."""
