"""Grammars over the toy runner's vocabulary: ids 0 to 48 are one letter each, the last one ends an answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Final

import numpy as np
from llguidance import LLMatcher

from baton_engine.grammars.answer_matcher import CompiledGrammar
from baton_engine.grammars.constrained_row import Allowance, ConstrainedRow, EndIds
from baton_engine.grammars.row_masks import RowMasks
from baton_engine.grammars.vocabulary import Vocabulary, ids_in, read_vocabulary
from baton_engine.scheduling.step_plan import SlotFailure, SlotTokens
from baton_testing.engine.grammars import of_regex
from baton_wire.messages.values import Grammar, SamplingParams

SIZE: Final = 50
END: Final = SIZE - 1
PATTERNS: Final = ("[A-C]{3,5}", "(AB|CD|0)[0-9]{1,6}", "([A-F][0-9])+", "[0-9A-Z]{0,8}X", "(0|1){9}")


def letter(token: int) -> str:
    """Every token is one character."""
    return chr(ord("0") + token)


@cache
def grammar(pattern: str) -> Grammar:
    return of_regex(pattern)


@cache
def vocabulary() -> Vocabulary:
    letters = {letter(token): token for token in range(END)}
    end = {"id": END, "content": "<end>", "special": True, "normalized": False}
    end |= {"single_word": False, "lstrip": False, "rstrip": False}
    whole = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    model = {"type": "BPE", "vocab": letters, "merges": []}
    file = {"version": "1.0", "added_tokens": [end], "pre_tokenizer": whole, "decoder": whole, "model": model}
    return read_vocabulary(json.dumps(file), (END,), SIZE)


@cache
def _compiled(definition: str) -> CompiledGrammar:
    return CompiledGrammar.of(LLMatcher(vocabulary().tokenizer, definition, log_level=0), vocabulary().words)


def allowed(sampling: SamplingParams, outputs: Sequence[int]) -> frozenset[int] | None:
    """The ids that may come after `outputs`, from the ids alone; None: any."""
    if sampling.grammar is None:
        return None
    ends = EndIds.of(vocabulary(), sampling.stop_token_ids)
    row = ConstrainedRow(sampling, tuple(outputs), vocabulary(), _compiled(sampling.grammar.definition), ends)
    if row.allowance is Allowance.ANYTHING or row.matcher is None:
        return None
    words = np.zeros(row.words, dtype=np.uint32)
    row.matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
    row.fill(words)
    return frozenset(ids_in(words))


def allowed_now(masks: RowMasks, slot: int) -> frozenset[int] | SlotFailure | None:
    """The same of a slot, as a runner asks."""
    if not masks.bind((slot,)):
        return None
    constraints = masks.constraints((slot,))
    if constraints.failures:
        return constraints.failures[0]
    return (
        None if constraints.masks is None else frozenset(ids_in(constraints.masks.allowed[0].numpy().view(np.uint32)))
    )


def took(masks: RowMasks, slot: int, token: int) -> None:
    masks.take_drawn((SlotTokens(slot, (token,)),))
