"""Parsing of model output: content, reasoning and tool calls, read from an answer's text while it comes.

Owns the formats in which models write reasoning and calls, their parsers, and the grammars that constrain calls.
Never knows a client's API, token ids or workers.
Called by `text` for the parsers, by `openai_api` for the parts, by `requests` for what constrains a request.
"""
