"""One decode worker with one-sided and guarded links side by side: each link's spans follow that link's rules."""

from __future__ import annotations

import pytest

from baton_kv_transfer.decode.machine import DecodeHandovers
from baton_kv_transfer.handover import Reservation
from baton_kv_transfer.landing import SpanState
from baton_testing.kv_transfer.builders import GEOMETRY
from baton_testing.kv_transfer.decode_machine import BLOCKS, CONFIG, KEY, OTHER, P1, P2, TOKENS, UNIT


def machine() -> DecodeHandovers:
    return DecodeHandovers(GEOMETRY, 16 * UNIT, CONFIG)


def quarantined(decode: DecodeHandovers) -> int:
    return decode.stats().landing.by_state[SpanState.QUARANTINED]


def test_only_the_one_sided_link_s_span_is_quarantined() -> None:
    decode = machine()
    decode.link_up(P1, 4, 0.0, one_sided=True, link=1)
    decode.link_up(P2, 4, 0.0, one_sided=False, link=2)
    decode.expected(KEY, P1, Reservation(TOKENS, 0, BLOCKS, (0,), 100.0), 0.0)
    decode.expected(OTHER, P2, Reservation(TOKENS, 0, BLOCKS, (0,), 100.0), 0.0)
    decode.link_down(P1, "cut", 1.0)
    decode.link_down(P2, "cut", 1.0)
    assert quarantined(decode) == 4 * UNIT
    decode.writes_ended(2, 2.0)
    assert quarantined(decode) == 4 * UNIT
    decode.writes_ended(1, 2.0)
    assert quarantined(decode) == 0


def test_the_proof_of_an_old_link_says_nothing_of_the_new_one() -> None:
    decode = machine()
    for link, key in ((1, KEY), (2, OTHER)):
        decode.link_up(P1, 4, 0.0, one_sided=True, link=link)
        decode.expected(key, P1, Reservation(TOKENS, 0, BLOCKS, (0,), 100.0), 0.0)
        decode.link_down(P1, "cut", 1.0)
    decode.writes_ended(1, 2.0)
    assert quarantined(decode) == 4 * UNIT


@pytest.mark.parametrize("scattering", [False, True])
def test_a_proof_before_the_hand_over_is_over_counts(scattering: bool) -> None:
    decode = machine()
    decode.link_up(P1, 4, 0.0, one_sided=True, link=5)
    decode.expected(KEY, P1, Reservation(TOKENS, 0, BLOCKS, (0,), 100.0), 0.0)
    if scattering:
        decode.writes_ended(5, 0.5)
    decode.link_down(P1, "cut", 1.0)
    decode.writes_ended(5, 1.5)
    assert quarantined(decode) == 0
