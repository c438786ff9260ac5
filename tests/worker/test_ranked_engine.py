"""The engine of several ranks next to that of one: the same worker to the outside, sized over all ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from baton_engine.scheduling.events import Drawn
from baton_testing.engine import tiny_llama
from baton_testing.engine.structured_engine import structured_spec
from baton_testing.engine.tiny_llama import FOLDER
from baton_wire.messages.values import Role, SamplingParams
from baton_worker.building import engine, ranked_engine
from baton_worker.building.parts import EngineParts
from baton_worker.config import parse
from baton_worker.errors import ConfigError

KV_BYTES = 24 << 20


def flags_of(model: str, *more: str) -> list[str]:
    return ["--model", model, "--served-name", "m", "--listen", "127.0.0.1:0", "--keys", "/nowhere", *more]


@contextmanager
def built(role: Role, *more: str, model: str = str(FOLDER)) -> Iterator[EngineParts]:
    """The engine of a worker with these flags, ended afterwards."""
    config = parse(role, flags_of(model, "--kv-cache-bytes", str(KV_BYTES), *more))
    build = ranked_engine.build if config.has_ranks else engine.build
    parts = build(config, lambda step, load, seconds: None)
    try:
        yield parts
    finally:
        if parts.masks is not None:
            parts.masks.compiler.close()
        parts.close()


def test_several_ranks_are_one_worker_to_all_others() -> None:
    with built(Role.DECODE) as one, built(Role.DECODE, "--tensor-parallel=2") as two:
        assert two.fingerprint == one.fingerprint
        assert two.geometry == one.geometry
        assert two.limits == one.limits
        assert two.landing_bytes == one.landing_bytes
        assert [pool.num_blocks for pool in two.pools] == [one.pool.num_blocks] * 2
        assert sum(pool.geometry.block_bytes for pool in two.pools) == one.geometry.block_bytes
        assert two.scheduler.config == dataclasses.replace(one.scheduler.config, devices=2)
        assert two.costs == one.costs
        assert list(two.stages) == ["weights", "ranks", "hand-over"]


def test_heads_that_two_ranks_hold_count_twice_against_the_memory() -> None:
    with built(Role.PREFILL, "--tensor-parallel=4") as four:
        assert sum(pool.geometry.block_bytes for pool in four.pools) == 2 * four.geometry.block_bytes
        assert four.pool.num_blocks == KV_BYTES // (2 * four.geometry.block_bytes)


def test_stages_are_one_worker_with_one_pool_to_all_others() -> None:
    with built(Role.PREFILL) as one, built(Role.PREFILL, "--pipeline-parallel=4") as four:
        assert four.fingerprint == one.fingerprint
        assert four.geometry == one.geometry
        assert four.limits == dataclasses.replace(one.limits, encoding=None), "stages pool and score no prompts"
        assert [pool.num_blocks for pool in four.pools] == [one.pool.num_blocks]
        assert four.scheduler.config == dataclasses.replace(one.scheduler.config, devices=4)
        assert four.costs == one.costs
        assert list(four.stages) == ["weights", "ranks", "hand-over"]


def greedy(parts: EngineParts, prompt: tuple[int, ...], tokens: int) -> list[int]:
    sampling = SamplingParams(max_tokens=tokens, temperature=0.0)
    parts.scheduler.submit(structured_spec(1, prompt, sampling), 0.0)
    ids: list[int] = []
    for _ in range(10_000):
        parts.stepper.turn(0.0)
        ids += [token for event in parts.scheduler.events() for token in getattr(event, "ids", ())]
        if parts.stepper.idle:
            return ids
    raise AssertionError("it goes on for ever")


def test_random_weights_are_shared_too() -> None:
    model = f"random://{FOLDER}/config.json?seed=3"
    prompt = tiny_llama.chat_ids("Tell me about owls.")
    with built(Role.DECODE, model=model) as one, built(Role.DECODE, "--tensor-parallel=2", model=model) as two:
        assert two.fingerprint == one.fingerprint
        assert greedy(two, prompt, 12) == greedy(one, prompt, 12)


def first_tokens(parts: EngineParts) -> tuple[dict[int, int], int]:
    """The first token of each of six prompts that come at once, and the most prompt tokens that were launched."""
    prompts = [tiny_llama.chat_ids(question) for question in tiny_llama.LONG_ANSWERS[:6]]
    sampling = SamplingParams(max_tokens=1, temperature=0.0)
    for number, prompt in enumerate(prompts, 1):
        parts.scheduler.submit(structured_spec(number, prompt, sampling), 0.0)
    drawn: dict[int, int] = {}
    most = 0
    for _ in range(10_000):
        parts.stepper.turn(0.0)
        most = max(most, parts.stepper.computing_tokens)
        for event in parts.scheduler.events():
            if isinstance(event, Drawn):
                drawn[int.from_bytes(event.key.request)] = event.ids[0]
        if parts.stepper.idle:
            return drawn, most
    raise AssertionError("it goes on for ever")


def test_prompts_in_short_steps_have_their_first_tokens_with_a_step_in_hand_at_each_stage() -> None:
    steps = "--max-step-tokens=16"
    with built(Role.PREFILL, steps) as one, built(Role.PREFILL, steps, "--pipeline-parallel=4") as four:
        expected, _ = first_tokens(one)
        drawn, most = first_tokens(four)
    assert len(expected) == 6
    assert drawn == expected
    assert most > 2 * 16, "more than two steps were launched at once"


@pytest.mark.parametrize(
    ("model", "flags", "message"),
    [
        (str(FOLDER), ("--pipeline-parallel=5",), r"pipeline_parallel: 5 .*the model has 4 layers.*allowed: 1 to 4$"),
        (
            str(FOLDER),
            ("--pipeline-parallel=2", f"--kv-cache-bytes={1 << 45}"),
            "argument --kv-cache-bytes: .* is more",
        ),
        ("/nonexistent", ("--pipeline-parallel=2",), "argument --model: /nonexistent"),
    ],
)
def test_stages_that_do_not_fit_are_refused_by_their_flag(model: str, flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ranked_engine.build(parse(Role.PREFILL, flags_of(model, *flags)), lambda step, load, seconds: None)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--tensor-parallel=3",), r"argument --tensor-parallel: .*3 .*heads.*allowed: 1, 2, 4$"),
        (("--tensor-parallel=2", "--max-context-tokens=4000"), "argument --model: max_context_tokens: 4000"),
        (("--tensor-parallel=2", f"--kv-cache-bytes={1 << 45}"), "argument --kv-cache-bytes: .* is more than"),
        (("--tensor-parallel=2", "--kv-cache-dtype=fp8"), "argument --kv-cache-dtype: fp8 with --device cpu"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_flag(flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ranked_engine.build(parse(Role.DECODE, flags_of(str(FOLDER), *flags)), lambda step, load, seconds: None)
