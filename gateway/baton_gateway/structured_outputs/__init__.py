"""Structured outputs: clients' schemas, regular expressions, choices and grammars become grammars for the workers.

Owns what a definition may hold, how it is translated, and the refusal that names the place of what cannot be enforced.
Never reads a client's definition in the gateway's own process: `format_compiler_main` does.
Called by `answers` for calls of tools and by `requests`, which asks `format_compiler`.
"""
