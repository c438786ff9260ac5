"""The tokenizer as matchers call it, with a cache of short texts.

Where a grammar allows one text only, such as a property's name, a matcher allows the ids with which the tokenizer would
write it. So it tokenises the same few short texts for nearly every mask of JSON's structure. That takes 4 µs a text,
and 20 µs after a model's layers have run, because they evict the tokenizer's own tables from the caches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from llguidance import LLTokenizer

LONGEST_TEXT: Final = 128
"""Bytes of a cached text. Longer ones are tokenised each time: a constant of a schema may have 64 kB."""
MOST_TEXTS: Final = 4_096
"""Most texts cached at once. One more clears the cache: texts still in use come back at once."""


def cache_texts(tokenise: Callable[[bytes], list[int]]) -> Callable[[bytes], list[int]]:
    """Wrap a function with a cache of short texts. Callers must not change the lists that it returns."""
    cache: dict[bytes, list[int]] = {}

    def tokenise_cached(text: bytes) -> list[int]:
        ids = cache.get(text)
        if ids is None:
            ids = tokenise(text)
            if len(text) <= LONGEST_TEXT:
                if len(cache) >= MOST_TEXTS:
                    cache.clear()
                cache[text] = ids
        return ids

    return tokenise_cached


class CachedTokenizer:
    """A tokenizer for `TokenizerWrapper`, over another one of the same vocabulary.

    Matchers call it in any thread. They hold none of their locks then, so it cannot deadlock with a thread that holds
    the interpreter's lock and waits for a matcher's.
    """

    bos_token_id: Final = None

    def __init__(self, tokenizer: LLTokenizer) -> None:
        ids = range(tokenizer.vocab_size)
        self.tokens = tuple(tokenizer.decode_bytes([token]) for token in ids)
        """Each id's text: a mark's is its name, padding's is empty."""
        self.special_token_ids = tuple(token for token in ids if tokenizer.is_special_token(token))
        self.eos_token_id = tokenizer.eos_token
        self._tokenise = cache_texts(tokenizer.tokenize_bytes)

    def __call__(self, text: bytes) -> list[int]:
        """Token ids of the text; the names of marks in it are ordinary text."""
        return self._tokenise(text)
