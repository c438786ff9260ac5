"""Grammars over the vocabulary of `examples/tiny-llama`: builders, a compiler, and an oracle that needs no matcher."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import regex
from llguidance import LLMatcher

from baton_engine.grammars.constrained_row import Allowance, ConstrainedRow
from baton_engine.grammars.grammar_compiler import GrammarCompiler
from baton_engine.grammars.row_masks import RowMasks
from baton_engine.grammars.vocabulary import Vocabulary, read_vocabulary
from baton_testing.engine.model_steps import opened
from baton_testing.engine.tiny_llama import FOLDER
from baton_wire.messages.values import Grammar, SamplingParams, Thought

VOCAB = 1024
END = 4
SPECIAL = frozenset(range(5))


@cache
def vocabulary(vocab_size: int = VOCAB) -> Vocabulary:
    return read_vocabulary((FOLDER / "tokenizer.json").read_text(), (END,), vocab_size)


@contextmanager
def compiling() -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(vocabulary)
    try:
        yield compiler
    finally:
        compiler.close()


@contextmanager
def masking(max_slots: int) -> Iterator[RowMasks]:
    with compiling() as compiler:
        yield RowMasks(compiler, max_slots)


NO_FORCING = '%llguidance { "no_forcing": true }\n'
"""Without it a matcher allows, where the text is certain, only the ids that the tokenizer would write it with."""


def of_regex(pattern: str, head: str = NO_FORCING) -> Grammar:
    return of_lark(json.loads(LLMatcher.grammar_from_regex(pattern))["grammars"][0]["lark_grammar"], head)


def of_schema(schema: dict[str, Any], head: str = NO_FORCING) -> Grammar:
    """Without whitespace between tokens."""
    options = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
    return of_lark(f"start: %json {json.dumps({'x-guidance': options, **schema})}", head)


BLANK = r"(?: |\r?\n[ \t]*)?"
"""The blanks that `of_spaced` allows between the parts of JSON."""


def of_spaced(schema: dict[str, Any], max_blanks: int | None, head: str = NO_FORCING) -> Grammar:
    """With whitespace between tokens: a space, or a new line with an indentation that the definition does not bound."""
    options = {"whitespace_pattern": r"[ ]|\r?\n[ \t]*"}
    definition = of_lark(f"start: %json {json.dumps({'x-guidance': options, **schema})}", head).definition
    return Grammar(definition, max_blanks)


def blanks_behind(outputs: Sequence[int]) -> int:
    """Spaces and tabs at the end of JSON that was begun, 0 within its texts."""
    text = b"".join(token_bytes()[token] for token in outputs)
    outside = regex.sub(rb'"(?:[^"\\]|\\.)*"', b".", text)
    return 0 if b'"' in outside else len(outside) - len(outside.rstrip(b" \t"))


def of_lark(text: str, head: str = NO_FORCING) -> Grammar:
    return Grammar(LLMatcher.grammar_from_lark(head + text))


def sampling_of(grammar: Grammar | None, thought: Thought | None = None, **fields: Any) -> SamplingParams:
    wanted = {"max_tokens": 200, "temperature": 1.0, "stop_token_ids": (END,), **fields}
    return SamplingParams(grammar=grammar, thought=thought, **wanted)


def row_of(compiler: GrammarCompiler, sampling: SamplingParams, outputs: Sequence[int] = ()) -> ConstrainedRow:
    return compiler.row(opened(0, sampling, outputs=outputs)).result(10)


def allowed_by(row: ConstrainedRow) -> set[int] | None:
    """The ids that the row's mask allows; None for any."""
    if row.allowance is Allowance.ANYTHING:
        return None
    words = np.zeros(row.words, dtype=np.uint32)
    if row.allowance is Allowance.MATCHER:
        assert row.matcher is not None
        row.matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if row.are_blanks_over:
            row.forbid_blanks(words)
    row.fill(words)
    return {token for token in range(len(words) * 32) if words[token // 32] >> (token % 32) & 1}


@cache
def token_bytes() -> tuple[bytes, ...]:
    """Bytes of every id, read from the file as byte-level BPE writes them: printable bytes as themselves, others from
    U+0100 on in their order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    letters = {chr(byte): byte for byte in printable}
    letters |= {chr(0x100 + place): byte for place, byte in enumerate(sorted(set(range(0x100)) - printable))}
    model = json.loads((FOLDER / "tokenizer.json").read_text())["model"]
    pieces = {token: bytes(letters[letter] for letter in text) for text, token in model["vocab"].items() if token > END}
    return tuple(pieces.get(token, b"") for token in range(VOCAB))


def allowed_by_hand(pattern: str, outputs: Sequence[int], ends: Sequence[int] = (END,)) -> set[int]:
    """Every token of the vocabulary tried one by one: does the text go on towards a match of the whole `pattern`?

    `pattern` as `regex` reads it, over bytes.
    """
    whole = regex.compile(pattern.encode())
    text = b"".join(token_bytes()[token] for token in outputs)
    tried = {
        token
        for token, piece in enumerate(token_bytes())
        if token not in SPECIAL and whole.fullmatch(text + piece, partial=True)
    }
    return tried | (set(ends) if whole.fullmatch(text) else set())
