"""The OpenAI API as values: typed fields of completions and chats, and the bodies and events of their answers.

Owns what such a request may ask for and what its answer looks like, whichever API the client speaks.
Never reads a socket, an API key or a worker.
Called by `apis` and `http_api` to read bodies, by `requests` to write answers.
"""
