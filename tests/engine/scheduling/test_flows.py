"""Many runs of one client's request next to small requests of other clients."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton_engine.scheduling.events import SequenceSpec
from baton_testing.engine.toy_engine import Engine, config, engine, spec

HOG = b"hog" + bytes(13)
SMALL = 1000


def hog(runs: int, choices: int = 2, max_tokens: int = 40) -> list[SequenceSpec]:
    made = (spec(number, 8, choices=range(choices), max_tokens=max_tokens) for number in range(1, runs + 1))
    return [replace(request, flow=HOG) for request in made]


def turns_until_done(running: Engine, request: SequenceSpec, local: bool) -> int:
    """Submits the request and counts turns to its end; reserved KV lands at once."""
    submit(running, request, local)
    for turn in range(1, 5_000):
        running.turn()
        land_all(running)
        if (request.key, 0) in running.finishes:
            return turn
    raise AssertionError("it never ends")


def submit(running: Engine, request: SequenceSpec, local: bool) -> None:
    (running.scheduler.submit if local else running.scheduler.reserve)(request, running.now)
    running.take_events()
    land_all(running)


def land_all(running: Engine) -> None:
    known = {request.key: request for request in SPECS.setdefault(id(running), [])}
    for reserved in running.reserved():
        if reserved.key in known:
            running.land(known[reserved.key], reserved)
            SPECS[id(running)] = [request for request in SPECS[id(running)] if request.key != reserved.key]


SPECS: dict[int, list[SequenceSpec]] = {}


def loaded(local: bool, blocks: int, requests: list[SequenceSpec], small: SequenceSpec) -> Engine:
    running = engine(config(num_blocks=blocks))
    SPECS[id(running)] = [*requests, small]
    for request in requests:
        submit(running, request, local)
    for _ in range(10 if requests else 0):
        running.turn()
        land_all(running)
    return running


@pytest.mark.parametrize("local", [True, False], ids=["computed here", "landed"])
@pytest.mark.parametrize("blocks", [400, 64], ids=["room", "short of blocks"])
def test_a_small_request_beside_sixty_runs_of_another_takes_at_most_twice_as_long(local: bool, blocks: int) -> None:
    small = spec(SMALL, 8, max_tokens=20)
    alone = turns_until_done(loaded(local, blocks, [], small), small, local)
    beside = turns_until_done(loaded(local, blocks, hog(60), small), small, local)
    assert beside <= 2 * alone


@pytest.mark.parametrize("local", [True, False], ids=["computed here", "landed"])
def test_all_runs_end_while_small_requests_never_stop_coming(local: bool) -> None:
    requests = hog(12, max_tokens=8)
    smalls = [spec(SMALL + number, 4, max_tokens=4) for number in range(400)]
    running = engine(config(num_blocks=64))
    SPECS[id(running)] = [*requests, *smalls]
    for request in requests:
        submit(running, request, local)
    for request in smalls:
        submit(running, request, local)
        running.turn()
        land_all(running)
        if all((one.key, choice) in running.finishes for one in requests for choice in one.choices):
            break
    else:
        raise AssertionError("the runs of the large request starve")


def test_a_flow_alone_takes_nearly_all_slots() -> None:
    running = engine(config(num_blocks=400))
    for request in hog(60, choices=1):
        running.scheduler.submit(request, 0.0)
    for _ in range(12):
        running.turn()
    assert running.scheduler.stats().running == 7, "of 8 slots"


def test_runs_that_wait_for_their_own_flow_do_not_make_the_worker_look_full() -> None:
    running = loaded(False, 400, hog(60), spec(SMALL, 8))
    assert running.scheduler.stats().running == 6
    assert running.scheduler.stats().waiting == 0


def test_a_prompt_whose_turn_is_earlier_starts_before_those_that_came_first() -> None:
    running = engine(config(num_blocks=400, max_slots=1))
    small = spec(SMALL, 8)
    for request in (*hog(3, choices=1), small):
        running.scheduler.submit(request, 0.0)
    running.run()
    ends = list(running.finishes)
    assert ends.index((small.key, 0)) == 1, "after the first run of the large request, which was alone"
