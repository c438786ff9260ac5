"""The tokenizer as matchers call it, which keeps what it has found.

Where a grammar leaves one text only, such as a property's name, a matcher allows the ids with which the tokenizer would
write it. So it asks the tokenizer for the same few short texts at nearly every mask of JSON's structure. That takes 4
µs a text, and behind a model's layers 20, for the tokenizer's own tables have left the caches by then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from llguidance import LLTokenizer

LONGEST_TEXT: Final = 128
"""Bytes. Longer texts are asked for each time: a constant of a schema may have 64 kB."""
MOST_TEXTS: Final = 4_096
"""Kept at once. All are forgotten beyond: what is still in use comes back at once."""


def keeping(spell: Callable[[bytes], list[int]]) -> Callable[[bytes], list[int]]:
    """The same function, which is asked once for each text that is kept. Nobody changes what it gives back."""
    kept: dict[bytes, list[int]] = {}

    def spelled(text: bytes) -> list[int]:
        found = kept.get(text)
        if found is None:
            found = spell(text)
            if len(text) <= LONGEST_TEXT:
                if len(kept) >= MOST_TEXTS:
                    kept.clear()
                kept[text] = found
        return found

    return spelled


class CachedTokenizer:
    """What a `TokenizerWrapper` takes as a tokenizer, over another one of the same vocabulary.

    Called by matchers, in whatever thread they are. They hold none of their locks then, so a thread that has Python's
    lock and waits for a matcher's is never waited for here.
    """

    bos_token_id: Final = None

    def __init__(self, tokenizer: LLTokenizer) -> None:
        ids = range(tokenizer.vocab_size)
        self.tokens = tuple(tokenizer.decode_bytes([token]) for token in ids)
        """Each id's text; of a mark its name; nothing where an id is padding."""
        self.special_token_ids = tuple(token for token in ids if tokenizer.is_special_token(token))
        self.eos_token_id = tokenizer.eos_token
        self._spell = keeping(tokenizer.tokenize_bytes)

    def __call__(self, text: bytes) -> list[int]:
        """Ids of the text; marks that are spelled in it are text."""
        return self._spell(text)
