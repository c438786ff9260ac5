"""Spans of ended hand-overs: what proves that their writers are at rest."""

from __future__ import annotations

from baton_kv_transfer.decode.spans import PendingProof, SpanReclaim
from baton_kv_transfer.handover import HandoverKey
from baton_kv_transfer.landing import REMEMBERED_LINKS, LandingRegion, SpanState
from baton_testing.kv_transfer.decode_machine import P1

HERE, ONE_SIDED = HandoverKey(b"h" * 16, 1), HandoverKey(b"o" * 16, 1)


class Ended:
    """Two hand-overs of one link that ended while a write may follow: one that this process writes itself, and one
    that its peer writes."""

    def __init__(self) -> None:
        self.landing = LandingRegion(4_096)
        self.reclaim = SpanReclaim(self.landing)
        for transfer, key in enumerate((HERE, ONE_SIDED), start=1):
            self.end(key, transfer, link=1)

    def end(self, key: HandoverKey, transfer: int, link: int) -> None:
        self.landing.grant(transfer, P1, 256, 256)
        proof = PendingProof(P1, transfer, key == ONE_SIDED, link)
        self.reclaim.end(key, proof, writes_may_follow=True, linked=True)

    @property
    def quarantined(self) -> int:
        return self.landing.stats().by_state[SpanState.QUARANTINED]


def test_a_closed_connection_proves_the_end_of_writes_of_this_process_and_of_no_others() -> None:
    ended = Ended()
    assert (len(ended.reclaim), ended.quarantined) == (2, 256)
    ended.reclaim.link_down(P1)
    assert (len(ended.reclaim), ended.quarantined) == (1, 256), "the peer may still write into the other span"
    assert not ended.reclaim.confirm(HERE, P1)
    assert ended.reclaim.confirm(ONE_SIDED, P1)
    assert ended.quarantined == 0


def test_a_hand_over_of_a_link_whose_writes_ended_lately_needs_no_proof() -> None:
    ended = Ended()
    ended.reclaim.writes_ended(1)
    assert len(ended.reclaim) == 0
    ended.end(ONE_SIDED, 3, link=1)
    assert (len(ended.reclaim), ended.quarantined) == (0, 0)


def test_only_the_latest_links_are_remembered() -> None:
    ended = Ended()
    for link in (1, 2, REMEMBERED_LINKS + 2):
        ended.reclaim.writes_ended(link)
    ended.end(ONE_SIDED, 3, link=1)
    assert (len(ended.reclaim), ended.quarantined) == (1, 256), "a process that runs for months has many links"
