"""A model's vocabulary as its matchers see it: the bytes of every token, and the ids that end a text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from llguidance import LLTokenizer, TokenizerWrapper

from baton_engine.grammars.blank_runs import blank_runs
from baton_engine.grammars.cached_tokenizer import CachedTokenizer
from baton_kernels.sampling.token_mask import WORD_BITS, mask_words

Words = npt.NDArray[np.uint32]
MAX_LEAD = 4
"""The most spaces and line ends between a thought and an answer with a grammar: models are used to one blank line."""


class VocabularyError(Exception):
    """The tokenizer file cannot be read: this worker can follow no grammar."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The vocabulary that all matchers of a worker share. Ids beyond the tokenizer's own are padding, never allowed."""

    tokenizer: LLTokenizer
    known: Words
    """[W]: the tokenizer's own ids."""
    marks: Words
    """[W]: the tokenizer's ids that have no text: the ends, and others such as the beginning of a turn."""
    end_ids: tuple[int, ...]
    """The ids that a matcher allows where a text may end."""
    unblank: Words
    """[W]: every id but those whose text begins with a space or a tab."""
    blank_runs: tuple[bytes, ...]
    """By id, its effect on a run of blanks (see `blank_runs`)."""
    blank_ids: frozenset[int]
    """Ids whose text is nothing but spaces and tabs."""
    lead_sizes: Mapping[int, int]
    """Ids whose text is at most `MAX_LEAD` spaces and line ends, with how many."""
    leads: tuple[Words, ...]
    """By a number of characters, [W]: the ids in `lead_sizes` of at most this size."""

    @property
    def words(self) -> int:
        return len(self.known)


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[Any]
    """Ids by piece, or (Unigram) pieces in the order of ids."""


class _AddedToken(msgspec.Struct):
    id: int


class _TokenizerFile(msgspec.Struct):
    model: _Model
    added_tokens: list[_AddedToken] = []


def _own_size(file: _TokenizerFile) -> int:
    """One more than the largest id."""
    vocab = file.model.vocab
    largest = len(vocab) - 1 if isinstance(vocab, list) else max(vocab.values(), default=-1)
    return max(largest, *(added.id for added in file.added_tokens), -1) + 1


def read_vocabulary(tokenizer_json: str, end_ids: tuple[int, ...], vocab_size: int) -> Vocabulary:
    """Read the vocabulary from a tokenizer file. `end_ids`: the ids that the model names; if none, the tokenizer's own
    is used. Raises VocabularyError."""
    try:
        own = _own_size(msgspec.json.decode(tokenizer_json, type=_TokenizerFile))
        size = max(own, vocab_size)
        ends = [token for token in end_ids if token < size] or None
        spelling = CachedTokenizer(LLTokenizer(tokenizer_json, n_vocab=size, eos_token=ends, slices=[]))
        tokenizer = LLTokenizer(TokenizerWrapper(spelling), eos_token=ends)
    except (ValueError, msgspec.DecodeError) as error:
        raise VocabularyError(f"tokenizer.json: {error}") from error
    words = mask_words(size)
    named = tuple(tokenizer.eos_tokens)
    marks = tuple(token for token in spelling.special_token_ids if token < own)
    texts = spelling.tokens[:own]
    led = tuple(token for token, text in enumerate(texts) if text.startswith((b" ", b"\t")))
    lead_sizes = {
        token: len(text) for token, text in enumerate(texts) if 0 < len(text) <= MAX_LEAD and not text.strip(b" \n")
    }
    return Vocabulary(
        tokenizer=tokenizer,
        known=bits_of(range(own), words),
        marks=bits_of((*marks, *named), words),
        end_ids=named,
        unblank=~bits_of(led, words),
        blank_runs=blank_runs([*texts, *[b""] * (words * WORD_BITS - own)]),
        blank_ids=frozenset(token for token in led if not texts[token].strip(b" \t")),
        lead_sizes=lead_sizes,
        leads=tuple(
            bits_of(tuple(token for token, size in lead_sizes.items() if size <= most), words)
            for most in range(MAX_LEAD + 1)
        ),
    )


def spelling_begins(vocabulary: Vocabulary, mark: int) -> tuple[int, ...]:
    """The ids of text that the name of a mark can begin with."""
    tokenizer = vocabulary.tokenizer
    name = tokenizer.decode_bytes([mark])
    starts = {tokenizer.tokenize_bytes(name[:length])[0] for length in range(1, len(name))}
    return tuple(
        token
        for token in sorted(starts)
        if not tokenizer.is_special_token(token) and name.startswith(tokenizer.decode_bytes([token]))
    )


def named_end_ids(files: Mapping[str, str | None]) -> tuple[int, ...]:
    """The end ids that a model's own files name: those for generation, or else those of its config."""
    for name in ("generation_config.json", "config.json"):
        content = json.loads(files.get(name) or "{}")
        named = content.get("eos_token_id") if isinstance(content, dict) else None
        ids = named if isinstance(named, list) else [named]
        if all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in ids) and ids:
            return tuple(ids)
    return ()


def ids_in(words: Words) -> tuple[int, ...]:
    """The ids of a mask [W], ascending."""
    return tuple(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())


def bits_of(ids: range | tuple[int, ...], words: int) -> Words:
    """[words]: a mask with these ids."""
    bits = np.zeros(words * WORD_BITS, dtype=np.uint8)
    bits[list(ids)] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)
