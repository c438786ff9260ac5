"""Verdicts on silence, in virtual time."""

from __future__ import annotations

import pytest

from baton_wire.liveness import Liveness, LivenessConfig, PeerState


def test_silence_makes_suspect_then_dead() -> None:
    alive = Liveness(LivenessConfig(1.5, 3.0), now=100.0)
    looks = {100.0 + step / 2: alive.state(100.0 + step / 2) for step in range(8)}
    assert [time for time, state in looks.items() if state is PeerState.SUSPECT] == [101.5, 102.0, 102.5]
    assert [time for time, state in looks.items() if state is PeerState.DEAD] == [103.0, 103.5]


def test_a_sign_of_life_starts_over() -> None:
    alive = Liveness(LivenessConfig(), now=0.0)
    assert looked(alive, 0.5, 2.0) is PeerState.SUSPECT
    alive.heard(2.0)
    assert looked(alive, 2.5, 3.0) is PeerState.LIVE
    alive.heard(1.0)
    assert alive.state(3.4) is PeerState.LIVE


def test_our_own_pause_is_not_held_against_the_peer() -> None:
    alive = Liveness(LivenessConfig(), now=0.0)
    assert alive.state(0.5) is PeerState.LIVE
    assert looked(alive, 60.0, 61.0) is PeerState.LIVE
    assert alive.state(61.4) is PeerState.LIVE
    assert alive.state(61.6) is PeerState.SUSPECT
    assert looked(alive, 62.0, 63.0) is PeerState.DEAD


def looked(alive: Liveness, first: float, last: float) -> PeerState:
    """The verdict of the last look, with one each half second until then."""
    states = [alive.state(first + step / 2) for step in range(int((last - first) * 2) + 1)]
    return states[-1]


@pytest.mark.parametrize("stall_s", [0.8, 1.2, 1.5])
def test_one_stall_of_ours_after_another_does_not_add_up_to_the_peers_silence(stall_s: float) -> None:
    alive, now = Liveness(LivenessConfig(), now=0.0), 0.0
    states = []
    for _ in range(2):
        now += stall_s
        states.append(alive.state(now))
    assert states == [PeerState.LIVE, PeerState.LIVE], "we were there for a second at most"
    assert looked(alive, now + 0.5, now + 2.5) is PeerState.DEAD, "a peer that is silent while we look is dead in time"


@pytest.mark.parametrize(("suspect_s", "dead_s"), [(0.0, 3.0), (-1.0, 3.0), (4.0, 3.0)])
def test_bounds_that_make_no_sense_are_refused(suspect_s: float, dead_s: float) -> None:
    with pytest.raises(ValueError, match="suspect_s"):
        LivenessConfig(suspect_s, dead_s)


def test_tells_when_to_look_again() -> None:
    alive = Liveness(LivenessConfig(1.5, 3.0), 10.0)
    assert alive.due_in(10.5) == 1.0
    assert alive.due_in(11.5) == 1.5
    assert alive.due_in(13.0) == 0.0
    alive.heard(13.0)
    assert alive.due_in(13.0) == 1.5


@pytest.mark.parametrize("stall_s", [0.0, 0.7, 1.9, 2.5, 3.0])
@pytest.mark.parametrize("from_s", [0.0, 0.5, 1.0, 1.5])
def test_a_death_is_seen_in_time_although_we_stood_still_for_some_of_it(stall_s: float, from_s: float) -> None:
    bounded = Liveness(LivenessConfig(suspect_s=2.0, dead_s=4.0, watched_s=1.0), now=0.0)
    assert dead_at(bounded, stall_s, from_s) <= max(4.0, from_s + stall_s + 1.0) + 0.34


def test_a_starved_process_sees_a_death_in_time() -> None:
    bounded = Liveness(LivenessConfig(suspect_s=2.0, dead_s=4.0, watched_s=1.0), now=0.0)
    states = [bounded.state(look * 1.4) for look in range(1, 5)]
    assert states.index(PeerState.DEAD) == 2, "4.2 s"


def test_after_a_stall_of_the_whole_machine_a_peer_has_a_second_to_speak() -> None:
    bounded = Liveness(LivenessConfig(suspect_s=2.0, dead_s=4.0, watched_s=1.0), now=0.0)
    assert bounded.state(0.3) is PeerState.LIVE
    assert bounded.state(60.0) is PeerState.LIVE
    assert bounded.state(60.9) is not PeerState.DEAD
    bounded.heard(60.9)
    assert bounded.state(61.3) is PeerState.LIVE


def dead_at(alive: Liveness, stall_s: float, from_s: float) -> float:
    """A watcher that looks each third of a second, but for a stall."""
    now = 0.0
    while alive.state(now) is not PeerState.DEAD:
        now += stall_s if now <= from_s < now + 1 / 3 and stall_s > 1 / 3 else 1 / 3
        assert now < 100.0
    return now


def test_what_must_be_watched_is_a_part_of_the_silence() -> None:
    with pytest.raises(ValueError, match="watched_s"):
        LivenessConfig(1.0, 2.0, 3.0)
