"""Constraints on the next token of an answer: grammars compiled and matched, thoughts followed, masks per row.

Owns the vocabulary's bytes, compiled grammars and one matcher per constrained row. All of it is rebuilt from token ids.
Never decides what is computed, and knows neither schemas nor tools.
Called by the runner, in the engine thread; compiling has threads of its own.
"""
