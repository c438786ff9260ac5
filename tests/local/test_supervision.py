"""The supervision machine: whole sequences of events and what it answers, in virtual time."""

from __future__ import annotations

import signal

import pytest

from baton_local.fleet.supervision import (
    Action,
    Exit,
    FinishRun,
    Patience,
    Phase,
    Publish,
    Ready,
    Say,
    Signal,
    Start,
    Supervisor,
)
from baton_wire.announcement import Announcement
from baton_wire.messages.values import Role

PATIENCE = Patience(
    first_ready_s=100, start_s=200, backoff_s=1, max_backoff_s=8, stable_s=60, gateway_stop_s=5, worker_stop_s=3
)
WORKERS = {"p0": Role.PREFILL, "d0": Role.DECODE}


def at(port: int) -> Announcement:
    return Announcement(1000 + port, "127.0.0.1", port, None, None)


def quiet(actions: list[Action]) -> list[Action]:
    return [action for action in actions if not isinstance(action, Say)]


def started() -> Supervisor:
    """A gateway, a prefill and a decode worker, none ready."""
    supervisor = Supervisor(0.0, PATIENCE)
    for name, role in {"gw": Role.GATEWAY, **WORKERS}.items():
        assert supervisor.add(name, role, 0.0) == [Start(name, 1)]
    return supervisor


def running() -> Supervisor:
    """The same, serving since second 10."""
    supervisor = started()
    for port, name in enumerate(supervisor.slots, 1):
        supervisor.announced(name, at(port), 10.0)
    assert supervisor.observed_routable(True) == [Ready()]
    return supervisor


def test_a_ready_worker_is_published_with_the_others_of_its_role() -> None:
    supervisor = started()
    supervisor.add("p1", Role.PREFILL, 0.0)
    assert quiet(supervisor.announced("p0", at(1), 2.0)) == [Publish(Role.PREFILL, (at(1),))]
    assert quiet(supervisor.announced("p1", at(2), 3.0)) == [Publish(Role.PREFILL, (at(1), at(2)))]
    assert quiet(supervisor.announced("gw", at(3), 3.0)) == []


def test_ready_is_said_once_and_a_later_loss_is_told() -> None:
    supervisor = running()
    assert supervisor.observed_routable(True) == []
    assert supervisor.observed_routable(False) == [
        Say("not routable: no fitting pair of prefill and decode worker is linked")
    ]
    assert supervisor.observed_routable(True) == [Say("routable again")]


def test_a_gateway_that_says_nothing_is_as_routable_as_it_was() -> None:
    supervisor = running()
    assert supervisor.observed_routable(None) == []
    assert supervisor.routable
    supervisor.observed_routable(False)
    assert supervisor.observed_routable(None) == []
    assert not supervisor.routable


def test_why_it_is_not_routable_is_told() -> None:
    supervisor = running()
    supervisor.exited("gw", Exit(1), 20.0)
    assert supervisor.observed_routable(False) == [Say("not routable: no gateway is ready")]


def test_ready_waits_for_a_worker_of_each_pool_though_one_pool_answers_alone() -> None:
    supervisor = started()
    supervisor.announced("gw", at(1), 1.0)
    supervisor.announced("p0", at(2), 10.0)
    assert supervisor.observed_routable(True) == []
    supervisor.announced("d0", at(3), 12.0)
    assert supervisor.observed_routable(True) == [Ready()]


def test_a_worker_that_refuses_ends_the_first_start_though_another_answers_already() -> None:
    supervisor = started()
    supervisor.announced("gw", at(1), 1.0)
    supervisor.announced("p0", at(2), 10.0)
    supervisor.observed_routable(True)
    assert Signal("gw", signal.SIGTERM) in supervisor.exited("d0", Exit(2, "argument --kv-cache-bytes: too few"), 11.0)
    assert (supervisor.stopping, supervisor.cause) == (True, "argument --kv-cache-bytes: too few")


def test_a_worker_more_that_refuses_ends_nothing_once_its_pool_serves() -> None:
    supervisor = started()
    supervisor.add("d1", Role.DECODE, 0.0)
    for port, name in enumerate(("gw", "p0", "d0"), 1):
        supervisor.announced(name, at(port), 10.0)
    assert supervisor.observed_routable(True) == [Ready()]
    assert quiet(supervisor.exited("d1", Exit(2, "no room"), 11.0)) == []
    assert not supervisor.stopping


def test_a_dead_worker_is_unpublished_and_started_again_after_a_growing_pause() -> None:
    supervisor = running()
    now, pauses = 20.0, []
    for incarnation in range(2, 8):
        actions = supervisor.exited("p0", Exit(-9), now)
        assert Publish(Role.PREFILL, ()) in actions
        due = supervisor.slots["p0"].since_s
        pauses.append(due - now)
        assert supervisor.tick(due - 0.01) == []
        assert supervisor.tick(due) == [Start("p0", incarnation)]
        now = due + 1.0
        supervisor.announced("p0", at(incarnation), now)
    assert pauses == [1, 2, 4, 8, 8, 8]


def asked(supervisor: Supervisor, name: str, is_live: bool, *times: float) -> list[Action]:
    incarnation = supervisor.slots[name].incarnation
    return [action for now in times for action in supervisor.checked_live(name, incarnation, is_live, now)]


def test_a_process_that_does_not_answer_for_so_long_is_killed_and_comes_back() -> None:
    supervisor = running()
    assert asked(supervisor, "d0", True, 12.0) == []
    assert asked(supervisor, "d0", False, 15.0, 20.0, 44.9) == []
    killed = [Say("d0: did not answer for 30 s, killed"), Signal("d0", signal.SIGKILL)]
    assert asked(supervisor, "d0", False, 45.0) == killed
    assert asked(supervisor, "d0", False, 46.0) == [], "once is enough"
    assert Publish(Role.DECODE, ()) in supervisor.exited("d0", Exit(-9), 46.0)
    assert supervisor.tick(47.0) == [Start("d0", 2)]
    assert supervisor.checked_live("d0", 1, False, 48.0) == [], "an answer about its predecessor"
    supervisor.announced("d0", at(7), 50.0)
    assert asked(supervisor, "d0", False, 51.0, 80.9) == [], "its silence counts anew"


def test_one_answer_ends_the_silence() -> None:
    supervisor = running()
    assert asked(supervisor, "gw", False, 15.0, 44.0) == []
    assert asked(supervisor, "gw", True, 44.5) == []
    assert asked(supervisor, "gw", False, 45.0, 74.9) == []
    assert Signal("gw", signal.SIGKILL) in asked(supervisor, "gw", False, 75.0)


def test_silence_begins_with_the_first_question_without_an_answer() -> None:
    """Nobody asked for an hour, because this process was stopped: that is not the worker's silence."""
    supervisor = running()
    asked(supervisor, "p0", True, 12.0)
    assert asked(supervisor, "p0", False, 3_600.0, 3_629.0) == []


def test_who_is_told_to_stop_is_not_asked_any_more() -> None:
    supervisor = running()
    supervisor.remove("p0", 20.0)
    assert asked(supervisor, "p0", False, 21.0, 99.0) == []
    assert supervisor.checked_live("nobody", 1, False, 99.0) == []


def test_every_start_has_a_limit_not_only_the_first() -> None:
    supervisor = running()
    supervisor.exited("d0", Exit(-9), 20.0)
    assert supervisor.tick(21.0) == [Start("d0", 2)]
    late = 21.0 + PATIENCE.start_s
    assert quiet(supervisor.tick(late - 0.1)) == []
    assert supervisor.tick(late) == [Say("d0: was not ready after 200 s, killed"), Signal("d0", signal.SIGKILL)]
    assert supervisor.tick(late + 0.1) == []
    supervisor.exited("d0", Exit(-9), late + 0.2)
    assert supervisor.tick(late + 2.2) == [Start("d0", 3)], "and the pause grows"


def test_what_cannot_be_started_is_tried_again_and_ends_nothing_once_it_served() -> None:
    supervisor = running()
    supervisor.exited("d0", Exit(-9), 20.0)
    for incarnation, (now, pause) in enumerate([(21.0, 2), (23.0, 4), (27.0, 8), (35.0, 8), (43.0, 8)], 2):
        assert supervisor.tick(now) == [Start("d0", incarnation)]
        (action,) = supervisor.not_started("d0", "Cannot allocate memory", now)
        assert action == Say(f"d0: cannot be started: Cannot allocate memory; restarting it in {pause} s")
    assert not supervisor.stopping


def test_what_cannot_be_started_at_first_is_given_up() -> None:
    supervisor = started()
    for now in (1.0, 3.0):
        supervisor.not_started("d0", "Cannot allocate memory", now)
        supervisor.tick(now + 2.0)
    supervisor.not_started("d0", "Cannot allocate memory", 9.0)
    assert supervisor.stopping
    assert supervisor.cause == "d0: cannot be started: Cannot allocate memory"


def test_a_worker_that_was_stable_starts_over_with_the_shortest_pause() -> None:
    supervisor = running()
    for now in (20.0, 100.0, 200.0):
        supervisor.exited("p0", Exit(1), now)
        assert supervisor.slots["p0"].since_s == now + 1
        supervisor.tick(now + 1)
        supervisor.announced("p0", at(9), now + 2)


def test_bad_configuration_before_the_first_ready_ends_everything_with_its_line() -> None:
    supervisor = started()
    actions = supervisor.exited("p0", Exit(2, "baton-prefill-worker: --model: no such directory"), 1.0)
    assert quiet(actions) == [Signal("gw", signal.SIGTERM)]
    assert quiet(supervisor.exited("gw", Exit(0), 2.0)) == [Signal("d0", signal.SIGTERM)]
    assert quiet(supervisor.exited("d0", Exit(0), 3.0))[-1:] == [
        FinishRun(1, "baton-prefill-worker: --model: no such directory")
    ]


def test_bad_configuration_after_it_is_tried_again() -> None:
    supervisor = running()
    supervisor.exited("d0", Exit(2, "no model"), 20.0)
    assert supervisor.slots["d0"].phase is Phase.WAITING
    assert not supervisor.stopping


def test_crashes_before_the_first_ready_are_forgiven_only_so_often() -> None:
    supervisor = started()
    for crash, now in enumerate((1.0, 5.0, 20.0), 1):
        supervisor.exited("p0", Exit(1, "Traceback"), now)
        assert supervisor.stopping == (crash == PATIENCE.crashes_before_ready)
        supervisor.tick(now + 4)
    assert supervisor.cause == "p0: ended with status 1; its last log line: Traceback"


def test_what_never_becomes_ready_is_given_up_with_what_is_missing() -> None:
    supervisor = started()
    supervisor.announced("gw", at(1), 1.0)
    assert supervisor.tick(99.9) == []
    assert supervisor.tick(100.0)
    assert supervisor.cause == "not ready after 100 s: p0, d0 not ready"


def test_stopping_takes_the_gateway_first_then_the_workers() -> None:
    supervisor = running()
    assert quiet(supervisor.stop(20.0)) == [Signal("gw", signal.SIGTERM)]
    assert supervisor.tick(24.0) == []
    assert quiet(supervisor.exited("gw", Exit(0), 24.5)) == [
        Signal("p0", signal.SIGTERM),
        Signal("d0", signal.SIGTERM),
    ]
    assert FinishRun(0, None) not in supervisor.exited("p0", Exit(0), 25.0)
    assert FinishRun(0, None) in supervisor.exited("d0", Exit(0), 25.0)
    assert supervisor.stop(26.0) == []


def test_what_does_not_stop_in_time_is_killed_once() -> None:
    supervisor = running()
    supervisor.stop(20.0)
    assert quiet(supervisor.tick(25.0)) == [Signal("gw", signal.SIGKILL)]
    assert supervisor.tick(26.0) == []
    supervisor.exited("gw", Exit(-9), 26.0)
    assert quiet(supervisor.tick(29.0)) == [Signal("p0", signal.SIGKILL), Signal("d0", signal.SIGKILL)]


def test_a_second_request_to_stop_kills_at_once() -> None:
    supervisor = running()
    supervisor.stop(20.0)
    assert supervisor.stop(20.1) == [Signal(name, signal.SIGKILL) for name in ("gw", "p0", "d0")]


def test_nothing_is_restarted_while_stopping() -> None:
    supervisor = running()
    supervisor.exited("p0", Exit(1), 20.0)
    supervisor.stop(20.1)
    assert supervisor.tick(60.0) == [
        Say("gw: did not stop in time, killed"),
        Signal("gw", signal.SIGKILL),
    ]
    supervisor.exited("gw", Exit(-9), 61.0)
    assert FinishRun(0, None) in supervisor.exited("d0", Exit(0), 62.0)


def test_a_worker_that_is_not_wanted_any_more_stops_and_stays_away() -> None:
    supervisor = running()
    assert supervisor.remove("p0", 20.0) == [Signal("p0", signal.SIGTERM)]
    assert quiet(supervisor.exited("p0", Exit(0), 21.0)) == [Publish(Role.PREFILL, ())]
    assert "p0" not in supervisor.slots
    assert supervisor.add("p0", Role.PREFILL, 22.0) == [Start("p0", 1)]


@pytest.mark.parametrize("status", [0, 1, -11])
def test_a_clean_end_that_nobody_asked_for_is_a_failure_too(status: int) -> None:
    supervisor = running()
    actions = supervisor.exited("gw", Exit(status, "bye"), 20.0)
    assert any(isinstance(action, Say) and "restarting it in 1 s" in action.text for action in actions)


def test_a_worker_that_leaves_finishes_first_unless_everything_stops() -> None:
    machine = Supervisor(0.0, Patience(worker_stop_s=15.0, worker_leave_s=600.0))
    machine.add("d", Role.DECODE, 0.0)
    machine.announced("d", Announcement(1, "127.0.0.1", 1, 2, None), 1.0)
    assert Signal("d", signal.SIGTERM) in machine.remove("d", 2.0)
    assert machine.remove("d", 3.0) == [], "ordered once"
    assert machine.tick(500.0) == [], "its requests may still run"
    machine.stop(510.0)
    assert Signal("d", signal.SIGKILL) in machine.tick(526.0)


def test_who_flips_is_found_in_its_new_pool_and_comes_back_in_it() -> None:
    supervisor = running()
    published = supervisor.flipped("p0", Role.DECODE)
    assert published == [Publish(Role.PREFILL, ()), Publish(Role.DECODE, (at(2), at(3)))]
    assert supervisor.flipped("p0", Role.DECODE)[-1] == published[-1], "ordered twice is ordered once"
    actions = quiet(supervisor.exited("p0", Exit(-signal.SIGKILL), 20.0))
    assert actions == [Publish(Role.DECODE, (at(3),))]
    assert quiet(supervisor.tick(21.0)) == [Start("p0", 2)]
    assert quiet(supervisor.announced("p0", at(9), 22.0)) == [Publish(Role.DECODE, (at(9), at(3)))]


def message_of(actions: list[Action]) -> str:
    return next(action.text for action in actions if isinstance(action, Say))


def test_a_kill_from_outside_is_named_with_its_probable_sender_and_not_blamed_on_an_old_line() -> None:
    end = Exit(-signal.SIGKILL, "WARNING do both sides hold the same key?", 40.2)
    assert message_of(running().exited("p0", end, 60.0)) == (
        "p0: killed by SIGKILL, not by Baton: the kernel's OOM killer? (see dmesg); "
        "its last log line, 40 s old: WARNING do both sides hold the same key?; restarting it in 1 s"
    )


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (-signal.SIGTERM, "killed by SIGTERM, not by Baton;"),
        (-signal.SIGSEGV, "killed by SIGSEGV, not by Baton: it crashed in native code;"),
        (-signal.SIGBUS, "killed by SIGBUS, not by Baton: is the disk or /dev/shm full?;"),
        (-(signal.SIGRTMIN + 3), "killed by signal 37, not by Baton;"),
        (1, "ended with status 1;"),
    ],
)
def test_an_end_is_described_by_its_status(status: int, words: str) -> None:
    assert f"p0: {words}" in message_of(running().exited("p0", Exit(status), 60.0))


def test_a_process_that_baton_killed_for_its_silence_is_not_blamed_on_the_kernel() -> None:
    supervisor = running()
    supervisor.checked_live("p0", 1, False, 20.0)
    killed = supervisor.checked_live("p0", 1, False, 20.0 + PATIENCE.silent_s)
    assert Signal("p0", signal.SIGKILL) in killed
    assert supervisor.slots["p0"].kill_reason == "did not answer for 30 s"
    words = "killed by Baton: it did not answer for 30 s"
    assert f"p0: {words}" in message_of(supervisor.exited("p0", Exit(-signal.SIGKILL), 61.0))
    slot = supervisor.slots["p0"]
    assert (slot.last_end, slot.last_end_s, slot.kill_reason) == (words, 61.0, "")
    supervisor.tick(70.0)
    supervisor.announced("p0", at(9), 71.0)
    assert "not by Baton" in message_of(supervisor.exited("p0", Exit(-signal.SIGKILL), 80.0)), (
        "the next kill is another one"
    )
