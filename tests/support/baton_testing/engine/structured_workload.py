"""Requests of every kind, and the answer that each of them gets by itself."""

from __future__ import annotations

import random
from functools import cache

from baton_engine.scheduling.events import SequenceSpec
from baton_testing.engine.grammars import VOCAB, of_schema, of_spaced, sampling_of
from baton_testing.engine.random_grammars import random_schema
from baton_testing.engine.structured_engine import structured_engine, structured_spec
from baton_wire.messages.values import Thought

CLOSE = 2


def mixed(seed: int, count: int = 8) -> list[SequenceSpec]:
    """Requests of every kind; every third has no grammar."""
    chance = random.Random(seed)
    specs = []
    for number in range(1, count + 1):
        prompt = [chance.randrange(5, VOCAB) for _ in range(chance.randint(1, 60))]
        schema, head = random_schema(chance)[0], chance.choice(("", "\n"))
        grammar = chance.choice((of_schema(schema, head), of_spaced(schema, chance.choice((2, 32)), head)))
        start, budget = chance.choice([((), 4), ((1,), None), ((1,), 3), ((1, 40, 41), 3), ((), 0)])
        thought = chance.choice([None, None, Thought(end=(CLOSE, 9), start=start, max_tokens=budget)])
        sampling = sampling_of(
            None if number % 3 == 0 else grammar,
            thought,
            max_tokens=chance.randint(1, 60),
            temperature=chance.choice((0.0, 1.0)),
            seed=chance.randrange(1 << 30),
            top_p=chance.choice((1.0, 0.8)),
            presence_penalty=chance.choice((0.0, 0.0, 0.7)),
            logprobs=chance.choice((None, None, 2)),
        )
        specs.append(structured_spec(number, prompt, sampling, choices=chance.choice((1, 1, 2, 3))))
    return specs


@cache
def alone(seed: int) -> dict[tuple[int, int], list[int]]:
    """The answer of each of `mixed(seed)` by itself, step by step."""
    outputs: dict[tuple[int, int], list[int]] = {}
    for spec in mixed(seed):
        with structured_engine() as engine:
            outputs |= engine.run(spec)
    return outputs
