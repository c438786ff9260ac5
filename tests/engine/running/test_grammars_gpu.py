"""Grammars on an asynchronous device: answers equal those of the CPU, one step ahead, batched with other rows."""

from __future__ import annotations

import random

import pytest
import torch

from baton_engine.scheduling.events import SequenceSpec
from baton_testing.engine.grammars import END, VOCAB, of_schema, sampling_of
from baton_testing.engine.random_grammars import random_schema
from baton_testing.engine.structured_engine import structured_engine, structured_spec
from baton_wire.messages.values import SamplingParams, Thought

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


def mixed(seed: int) -> list[SequenceSpec]:
    chance, specs = random.Random(seed), []
    for number in range(1, 13):
        thought = chance.choice([None, Thought(end=(2,), max_tokens=4), Thought(end=(2,), start=(1,))])
        sampling = SamplingParams(max_tokens=40, temperature=0.0, stop_token_ids=(END,))
        if number % 3:
            sampling = sampling_of(
                of_schema(random_schema(chance)[0], head=""),
                thought,
                temperature=chance.choice((0.0, 1.0)),
                seed=number,
                max_tokens=60,
                top_p=chance.choice((1.0, 0.9)),
                top_k=chance.choice((None, 5)),
                logprobs=chance.choice((None, 2)),
            )
        prompt = [chance.randrange(5, VOCAB) for _ in range(chance.randint(1, 60))]
        specs.append(structured_spec(number, prompt, sampling, choices=chance.choice((1, 2))))
    return specs


@pytest.mark.parametrize("seed", range(4))
def test_answers_are_those_of_the_cpu(seed: int) -> None:
    with structured_engine(slots=24) as engine:
        expected = engine.run(*mixed(seed))
        assert engine.failures == {}
    with structured_engine(slots=24, device="cuda") as engine:
        outputs = engine.run(*mixed(seed))
        assert engine.failures == {}
    differing = [place for place in expected if outputs[place] != expected[place]]
    assert differing == []
