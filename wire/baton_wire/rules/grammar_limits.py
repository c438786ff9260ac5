"""Limits of a grammar's cost. One set of numbers, so that a worker's matcher refuses nothing that a gateway accepted.

The names are those of llguidance's parser limits, and so are the speeds: fuel is counted, not time, so that every
machine gives up at the same place.
"""

from __future__ import annotations

from typing import Final

INITIAL_LEXER_FUEL: Final = 1_000_000
"""To build the automata of a grammar's terminals; about 20 ms."""
STEP_LEXER_FUEL: Final = 100_000
"""For the mask of one token; about 7 ms."""
STEP_MAX_ITEMS: Final = 50_000
"""Parser items of one token; about 2.5 ms."""
MAX_LEXER_STATES: Final = 50_000
"""In an answer's whole life; 1 to 2 kB each."""
MAX_ITEMS_IN_ROW: Final = 2_000
MAX_GRAMMAR_SIZE: Final = 500_000
"""Symbols of all rules."""
