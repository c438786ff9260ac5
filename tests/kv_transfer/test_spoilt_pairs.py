"""Small runs of the campaign `campaigns.fuzz`: spoilt data, cancels after every event, forgeries, frames of no peer."""

from __future__ import annotations

import pytest

from baton_kv_transfer import sealed_checksums
from baton_testing.kv_transfer.defects import Defect
from baton_testing.kv_transfer.spoilt_pair import SIDES, CancelledPair, SpoiltPair, spoil
from baton_testing.wire.forgeries import Forgeries
from baton_testing.wire.fuzz import HandshakeFuzz, WireFuzz
from baton_testing.wire.link_fuzz import LinkFuzz

EVENTS = 24


@pytest.mark.parametrize("one_sided", [False, True])
def test_nothing_lands_from_spoilt_data(one_sided: bool) -> None:
    tally = spoil(150, 1, one_sided=one_sided)
    assert len(tally.injected) == len(Defect) - 1
    assert tally.landed_wrong == tally.landed_spoilt == tally.clean_lost == 0


def test_digests_of_checksums_see_what_checksums_see(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Seals of the longest prompts have them."""
    monkeypatch.setattr(sealed_checksums, "MAX_CHECKSUM_BYTES", 8)
    tally = spoil(60, 5, one_sided=False)
    assert len(tally.injected) >= 12
    assert tally.landed_wrong == tally.landed_spoilt == tally.clean_lost == 0


def test_the_check_sees_what_lands_without_being_verified() -> None:
    """Bytes that are spoilt after verification: the comparison with the computed KV must show it."""
    pair = SpoiltPair(1, one_sided=False)
    scatter = pair.sink.scatter

    def careless(stream: memoryview, *where: object) -> bytes:
        sums = scatter(stream, *where)  # type: ignore[arg-type]
        pair.sink.tensor.add_(1.0)
        return sums

    pair.sink.scatter = careless  # type: ignore[assignment]
    result = pair.run(Defect.NONE)
    assert result.is_landed
    assert not result.is_exact


@pytest.mark.parametrize("one_sided", [False, True])
def test_a_cancel_after_any_event_leaves_nothing(one_sided: bool) -> None:
    pair = CancelledPair(2, one_sided=one_sided)
    ends = [pair.cancel_at(point, side).is_landed for point in range(EVENTS) for side in SIDES]
    assert not any(ends[: len(SIDES)])
    assert any(ends)


def test_no_forged_proof_grant_or_seal_is_acted_on() -> None:
    handshakes, pairs = HandshakeFuzz(3), Forgeries(3)
    assert not any(handshakes.step() for _ in range(300))
    for _ in range(300):
        pairs.forge_grant()
        pairs.forge_seal()
    assert pairs.counts == {"grants": 300, "grants acted on": 0, "seals": 300, "seals landed": 0}


def test_altered_and_hostile_frames_end_their_link_and_hand_nothing_else_on() -> None:
    fuzz = LinkFuzz(5)
    assert fuzz.run(2_000) >= 2_000
    assert set(fuzz.ends) == {"AlteredFrameError", "BadMessageError", "LinkLostError"}
    assert fuzz.refused > 0


def test_frames_of_nobody_are_refused_in_a_few_words() -> None:
    fuzz = WireFuzz(4, count=2)
    taken = sum(fuzz.step() for _ in range(4_000))
    assert 0 < taken < 1_000
    assert fuzz.longest_error <= 300
