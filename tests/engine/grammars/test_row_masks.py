"""Masks of a batch over many draws: what is kept from one draw to the next is what would be computed anew."""

from __future__ import annotations

import random

import pytest

from baton_engine.grammars.row_masks import RowMasks
from baton_engine.scheduling.step_plan import SlotTokens
from baton_testing.engine.grammars import END, VOCAB, allowed_by, masking, of_spaced, row_of, sampling_of, token_bytes
from baton_testing.engine.model_steps import opened
from baton_testing.engine.random_grammars import random_schema
from baton_wire.messages.values import SamplingParams

SLOTS = 4
LINE = token_bytes().index(b"\n")
BLANK = {token for token, text in enumerate(token_bytes()) if text and not text.strip(b" \t")}


def allowed_in(masks: RowMasks, slots: tuple[int, ...]) -> dict[int, set[int]]:
    """By slot."""
    constraints = masks.constraints(slots)
    assert not constraints.failures
    assert constraints.masks is not None
    rows, words = constraints.masks.rows.tolist(), constraints.masks.allowed.tolist()
    return {
        slots[row]: {token for token in range(VOCAB) if mask[token // 32] >> (token % 32) & 1}
        for row, mask in zip(rows, words, strict=True)
    }


def sampling(chance: random.Random) -> SamplingParams:
    schema = {"type": "array", "items": random_schema(chance)[0], "minItems": 1}
    return sampling_of(of_spaced(schema, chance.choice((None, 2, 6)), head=""))


@pytest.mark.parametrize("seed", range(20))
def test_masks_of_a_batch_are_those_of_rows_made_anew(seed: int) -> None:
    chance = random.Random(seed)
    with masking(SLOTS) as masks:
        held: dict[int, tuple[SamplingParams, list[int]]] = {}
        kept = 0
        for _ in range(60):
            for slot in range(SLOTS):
                if slot not in held and chance.random() < 0.2:
                    held[slot] = (sampling(chance), [])
                    masks.open(opened(slot, held[slot][0]))
            slots = tuple(held)
            if not slots:
                continue
            allowed = allowed_in(masks, slots)
            for slot, (asked, ids) in held.items():
                assert allowed[slot] == allowed_by(row_of(masks.compiler, asked, ids)), ids
            for slot, (_, ids) in tuple(held.items()):
                wanted = chance.random() < 0.8
                likely = (allowed[slot] & {LINE} or allowed[slot] & BLANK) if wanted else set()
                token = chance.choice(sorted(likely or allowed[slot]))
                kept += token in BLANK and bool(ids) and ids[-1] in BLANK
                ids.append(token)
                masks.take_drawn([SlotTokens(slot, (token,))])
                if token == END or chance.random() < 0.02:
                    masks.close([slot])
                    del held[slot]
        assert kept, "blanks behind blanks"
