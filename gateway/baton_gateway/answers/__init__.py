"""What a model's answer says: content, reasoning and calls of tools, read from its text while it comes.

Owns the formats in which models write thoughts and calls, their readers, and the grammars that bind a call.
Never knows a client's API, token ids or workers.
Called by `text` for the readers, by `http_api` for the parts, by `requests` for what a request binds.
"""
