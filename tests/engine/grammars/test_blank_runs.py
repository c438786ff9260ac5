"""Blanks in a row outside of texts, against a scanner that looks at the whole."""

from __future__ import annotations

import json
import random
import re

import pytest

from baton_engine.grammars.blank_runs import ESCAPE, MOST, TEXT, blank_runs


def state_behind(text: bytes) -> int:
    """By looking at all of it."""
    outside = re.sub(rb'"(?:[^"\\]|\\.)*"', b".", text, flags=re.DOTALL)
    if (begin := outside.find(b'"')) >= 0:
        return ESCAPE if re.fullmatch(rb"(?:[^\\]|\\.)*\\", outside[begin:], re.DOTALL) else TEXT
    return min(MOST, len(outside) - len(outside.rstrip(b" \t")))


def pieces(text: bytes, chance: random.Random) -> list[bytes]:
    cuts = sorted(chance.choices(range(len(text) + 1), k=chance.randint(0, 8)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def document(chance: random.Random) -> bytes:
    parts = ["a  b", 'q" ', "\\", "\t", "", [1, "  "], {" ": None, '\\"': "é \n"}, 7]
    made = chance.choices(parts, k=chance.randint(0, 4))
    return json.dumps(made, indent=chance.choice((None, 0, 3, "\t")), ensure_ascii=False).encode()


@pytest.mark.parametrize("seed", range(200))
def test_any_pieces_of_a_document_lead_where_the_whole_does(seed: int) -> None:
    chance = random.Random(seed)
    text = document(chance)
    text = text[: chance.randint(0, len(text))] if seed % 2 else text
    state = 0
    for table in blank_runs(cut := pieces(text, chance)):
        state = table[state]
    assert state == state_behind(text), cut


@pytest.mark.parametrize("seed", range(50))
def test_a_table_does_what_its_bytes_do_one_by_one_from_every_state(seed: int) -> None:
    chance = random.Random(seed)
    text = bytes(chance.choices(b' \t\n\\",a\xc3', k=chance.randint(0, 9)))
    (whole,) = blank_runs([text])
    for state in range(256):
        behind = state
        for table in blank_runs([bytes([byte]) for byte in text]):
            behind = table[behind]
        assert whole[state] == behind


def test_a_count_has_an_end_and_equal_tables_are_one() -> None:
    long, word, other = blank_runs([b" " * 300, b" word", b"x"])
    assert long[0] == long[MOST] == MOST
    assert long[TEXT] == TEXT
    assert word is other
