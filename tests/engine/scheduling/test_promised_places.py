"""Places of accepted prompts are announced before they are computed, and withdrawn when they will not be."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from baton_engine.scheduling import promised_places
from baton_engine.scheduling.events import SequenceSpec
from baton_engine.scheduling.scheduler import Scheduler
from baton_testing.engine.toy_engine import Engine, config, engine, key, spec
from baton_wire.messages.encoding import Encoding, EncodingKind
from baton_wire.messages.values import PLACE_BYTES, pack_ids
from baton_wire.rules.prefix_digests import PromptPlaces, sparse_lengths

LONG = config(num_blocks=1_024, max_context_tokens=2_048, max_step_tokens=1_024, max_slots=16)
BLOCK = LONG.block_tokens


class Reader:
    """What a gateway knows of the worker's places."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.known: set[bytes] = set()

    def read(self) -> set[bytes]:
        changes = self._scheduler.take_places()
        for digest in changes.dropped:
            self.known.remove(digest[:PLACE_BYTES])
        for digest, _ in changes.added:
            assert digest[:PLACE_BYTES] not in self.known
            self.known.add(digest[:PLACE_BYTES])
        return self.known

    def longest(self, request: SequenceSpec) -> int:
        """Blocks of the prompt's longest announced beginning."""
        names = PromptPlaces(pack_ids(request.tokens), request.salt).names(BLOCK)
        ends = range(len(names), 0, -PLACE_BYTES)
        return next((end // PLACE_BYTES for end in ends if names[end - PLACE_BYTES : end] in self.known), 0)


def accepted(*requests: SequenceSpec, reserve: bool = False) -> tuple[Engine, Reader]:
    running = engine(LONG)
    for request in requests:
        (running.scheduler.reserve if reserve else running.scheduler.submit)(request, running.now)
    reader = Reader(running.scheduler)
    reader.read()
    return running, reader


def test_a_prompt_that_waits_is_announced_by_its_sparse_places_and_its_end() -> None:
    request = spec(1, 800)
    _, reader = accepted(request)
    assert reader.longest(request) == 800 // BLOCK
    assert len(reader.known) == len(sparse_lengths(800 // BLOCK, BLOCK))


def test_where_two_waiting_prompts_part_is_announced() -> None:
    head = list(range(700))
    first, second = spec(1, [*head, *range(100)]), spec(2, [*head, *range(500, 600)])
    _, reader = accepted(first, second)
    assert reader.longest(spec(3, [*head, *[998] * 90])) == 700 // BLOCK


def test_a_promise_is_withdrawn_when_the_request_ends_without_computing() -> None:
    request = spec(1, 800)
    running, reader = accepted(request)
    running.scheduler.cancel(request.key, None, running.now)
    assert reader.read() == set()
    assert not running.scheduler.pool.places._places


def test_an_announced_place_that_is_computed_is_not_announced_again() -> None:
    request = spec(1, 800)
    running, reader = accepted(request)
    before = set(reader.known)
    running.run()
    assert before <= reader.read()
    assert reader.longest(request) == 800 // BLOCK


def test_kv_that_is_on_its_way_is_promised_by_the_worker_that_will_receive_it() -> None:
    request = spec(1, 800)
    running, reader = accepted(request, reserve=True)
    assert reader.longest(request) == 800 // BLOCK
    running.scheduler.release(request.key, running.now)
    assert reader.read() == set()


def test_without_a_prefix_cache_nothing_is_promised() -> None:
    running = engine(config(num_blocks=1_024, max_context_tokens=2_048, max_slots=16, prefix_cache=False))
    running.scheduler.submit(spec(1, 800), running.now)
    assert not running.scheduler.take_places()


def test_of_many_waiting_prompts_the_earliest_are_promised_and_the_others_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(promised_places, "MOST_PROMPTS", 3)
    requests = [spec(number, 100) for number in range(1, 8)]
    running, reader = accepted(*requests)
    assert [bool(reader.longest(request)) for request in requests] == [True] * 3 + [False] * 4
    for request in requests[:3]:
        running.scheduler.cancel(request.key, None, running.now)
    reader.read()
    assert [bool(reader.longest(request)) for request in requests] == [False] * 3 + [True] * 3 + [False]


def test_one_update_computes_digests_of_a_bounded_number_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promised_places, "MOST_BLOCKS", 800 // BLOCK)
    requests = [spec(number, 800) for number in (1, 2, 3)]
    _, reader = accepted(*requests)
    for served in (1, 2, 3):
        assert sum(reader.longest(request) == 800 // BLOCK for request in requests) == served
        reader.read()


@pytest.mark.parametrize("seed", range(6))
def test_after_any_history_exactly_what_is_cached_stays_announced(seed: int) -> None:
    dice, running = random.Random(seed), engine(LONG)
    reader, alive = Reader(running.scheduler), list[SequenceSpec]()
    for number in range(1, 60):
        tokens = [dice.randrange(2) for _ in range(dice.randint(1, 6))]
        prompt = [token for token in tokens for _ in range(BLOCK)] + list(range(number, number + dice.randint(1, 200)))
        running.scheduler.submit(spec(number, prompt, max_tokens=dice.randint(1, 5)), running.now)
        running.take_events()
        alive.append(spec(number, prompt))
        if dice.random() < 0.3:
            running.scheduler.cancel(alive.pop(dice.randrange(len(alive))).key, None, running.now)
        for _ in range(dice.randrange(4)):
            running.turn()
        reader.read()
    running.run()
    reader.read()
    assert all(place.promises == 0 and place.groups for place in running.scheduler.pool.places._places.values())
    assert running.scheduler.knows(key(1)) is False


def test_a_prompt_that_is_encoded_promises_nothing_because_it_is_never_cached() -> None:
    request = replace(spec(1, 800), encoding=Encoding(EncodingKind.EMBEDDING))
    running, reader = accepted(request)
    assert reader.known == set()
    running.turn()
    assert reader.read() == set()
