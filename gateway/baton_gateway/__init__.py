"""The gateway: the OpenAI API, text, admission, routing, retries and migration.

Owns text and the life of a client's request.
Never handles a GPU or the Kubernetes API, and knows workers by their messages alone.
Called as a process: `python -m baton_gateway`.
"""
