"""Ranks on GPUs: one each where there are enough. Otherwise all share the first, in turns."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
import torch

from baton_engine.collectives.collective import RankLostError
from baton_testing.engine import device_exchange, tiny_llama
from baton_testing.engine.rank_group import rank_group
from baton_testing.engine.structured_engine import structured_engine, structured_spec
from baton_testing.engine.structured_workload import alone, mixed
from baton_testing.engine.tiny_llama import FOLDER
from baton_wire.kv_shape import PoolPart, Units
from baton_wire.messages.values import Role, SamplingParams
from baton_worker.building import engine, ranked_engine
from baton_worker.building.parts import EngineParts
from baton_worker.building.rank_gpus import SHARE_VARIABLE
from baton_worker.config import parse

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

RANDOM = f"random://{FOLDER}/config.json?seed=3"
GREEDY = SamplingParams(max_tokens=48, temperature=0.0)
DRAWN = SamplingParams(max_tokens=48, temperature=0.9, top_p=0.95, seed=7)
NOISY = SamplingParams(max_tokens=48, temperature=1.0, seed=8, logprobs=2)
PENALISED = SamplingParams(max_tokens=48, temperature=0.0, frequency_penalty=1.0)


def test_exchanges_are_exact_eagerly_and_in_graphs() -> None:
    for text in device_exchange.start(dies=False):
        print(text)
        assert text.count(": exact in") == 5, text


def test_a_dead_rank_ends_the_others_waits() -> None:
    texts = device_exchange.start(dies=True)
    assert all("lost after" in text for rank, text in enumerate(texts) if rank != 1), texts


@contextmanager
def built(role: Role, *more: str, model: str = str(FOLDER), dtype: str = "float32") -> Iterator[EngineParts]:
    """The engine of a worker on the GPU with these flags, ended afterwards."""
    flags = ["--model", model, "--served-name", "m", "--listen", "127.0.0.1:0", "--keys", "/nowhere", "--device=cuda"]
    flags += [f"--dtype={dtype}", "--kv-cache-bytes", str(64 << 20), "--max-sequences=4", *more]
    config = parse(role, flags)
    build = engine.build if config.tensor_parallel == 1 else ranked_engine.build
    parts = build(config, lambda step, load, seconds: None)
    try:
        yield parts
    finally:
        if parts.masks is not None:
            parts.masks.compiler.close()
        parts.close()


def answers(parts: EngineParts, samplings: list[SamplingParams]) -> list[list[int]]:
    """The answers to prompts of different lengths, all at once."""
    ids: dict[int, list[int]] = {}
    for number, sampling in enumerate(samplings):
        prompt = tiny_llama.chat_ids(tiny_llama.LONG_ANSWERS[number]) * (1 + number)
        ids[number] = []
        parts.scheduler.submit(structured_spec(number, prompt, sampling), 0.0)
    for _ in range(10_000):
        parts.stepper.turn(0.0)
        for event in parts.scheduler.events():
            if hasattr(event, "ids"):
                ids[int.from_bytes(event.key.request, "big")] += event.ids
        if parts.stepper.idle:
            return [ids[number] for number in range(len(samplings))]
    raise AssertionError("it goes on for ever")


@pytest.fixture(autouse=True)
def _share(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.device_count() < 2:
        monkeypatch.setenv(SHARE_VARIABLE, "1")


SAMPLINGS = [GREEDY, DRAWN, NOISY, PENALISED]


@pytest.mark.parametrize("model", [str(FOLDER), RANDOM], ids=["trained", "random"])
def test_two_ranks_answer_as_one_in_float32(model: str) -> None:
    flags = ("--kv-cache-bytes", str(64 << 20))
    with built(Role.DECODE, *flags, model=model) as one:
        whole, drawn = answers(one, [GREEDY] * 4), answers(one, SAMPLINGS)
    with built(Role.DECODE, "--tensor-parallel=2", *flags, model=model) as two:
        assert two.fingerprint == one.fingerprint
        assert answers(two, [GREEDY] * 4) == whole
        assert answers(two, SAMPLINGS) == drawn
        assert answers(two, SAMPLINGS) == drawn


def agreement(whole: list[list[int]], shared: list[list[int]]) -> float:
    """The share of greedy tokens that are equal, up to the first other one of each answer."""
    agreeing = sum(
        next((n for n, pair in enumerate(zip(*ids, strict=True)) if len(set(pair)) > 1), len(ids[0]))
        for ids in zip(whole, shared, strict=True)
    )
    print(f"{agreeing} of {sum(map(len, whole))} greedy tokens before the first other one")
    return agreeing / sum(map(len, whole))


@pytest.mark.parametrize("model", [str(FOLDER), RANDOM], ids=["trained", "random"])
def test_two_ranks_nearly_answer_as_one_in_bfloat16(model: str) -> None:
    with built(Role.DECODE, dtype="bfloat16", model=model) as one:
        whole = answers(one, [GREEDY] * 4)
    with built(Role.DECODE, "--tensor-parallel=2", dtype="bfloat16", model=model) as two:
        shared = answers(two, [GREEDY] * 4)
        assert answers(two, [GREEDY] * 4) == shared
    assert agreement(whole, shared) > (0.8 if model == str(FOLDER) else 0.1)


@pytest.mark.parametrize("seed", range(2))
def test_grammars_choices_and_noise_draw_on_gpus_what_one_process_draws(seed: int) -> None:
    with (
        rank_group(2, gpus=(0, 1 % torch.cuda.device_count())) as group,
        structured_engine(ranks=group, max_step_tokens=40) as structured,
    ):
        outputs = structured.run(*mixed(seed))
    assert structured.failures == {}
    assert outputs == alone(seed)


def test_kv_of_8_bits_is_that_of_one_rank() -> None:
    """All keys and values of both workers are the same numbers, rounded to 8 bits."""
    flags = ("--kv-cache-dtype=fp8",)
    with built(Role.DECODE, *flags, dtype="bfloat16") as one:
        whole = answers(one, [GREEDY] * 4)
    with built(Role.DECODE, "--tensor-parallel=2", *flags, dtype="bfloat16") as two:
        shared = answers(two, [GREEDY] * 4)
        assert all(pool.geometry.element_bytes == 1 for pool in two.pools)
    assert agreement(whole, shared) > 0.8


@pytest.mark.parametrize("ranks", [(2, 1), (1, 2)], ids=["P2-D1", "P1-D2"])
def test_kv_moves_between_workers_of_unequal_ranks(ranks: tuple[int, int]) -> None:
    """Blocks are packed and scattered by the workers' processes, from and to the memory of their ranks."""
    with built(Role.PREFILL, f"--tensor-parallel={ranks[0]}") as prefill:
        answers(prefill, [SamplingParams(max_tokens=1, temperature=0.0)] * 2)
        with built(Role.DECODE, f"--tensor-parallel={ranks[1]}") as decode:
            heads, layers = prefill.geometry.kv_heads, prefill.geometry.layers
            units = prefill.pool.tensor.flatten(1).any(1).nonzero()[:3, 0].tolist()
            assert len(units) >= 2
            for head in range(heads):
                source, own = divmod(head, heads // ranks[0])
                target, other = divmod(head, heads // ranks[1])
                pieces = [
                    Units(units, prefill.geometry.block_tokens, 0, len(units), PoolPart(0, layers, part, part + 1))
                    for part in (own, other)
                ]
                stream = bytearray(len(units) * prefill.geometry.block_bytes // heads)
                prefill.pools[source].pack(pieces[0], memoryview(stream))
                assert any(stream)
                decode.pools[target].scatter(memoryview(stream), pieces[1])
                assert decode.pools[target].checksums(pieces[1]) == prefill.pools[source].checksums(pieces[0])


def turn_for_ever(parts: EngineParts) -> None:
    for _ in range(10_000):
        parts.stepper.turn(0.0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_rank_ends_a_step_whose_kernels_wait_for_it(number: signal.Signals) -> None:
    with built(Role.DECODE, "--tensor-parallel=2") as two:
        losses: list[BaseException] = []
        two.watch_loss(losses.append)
        ranks = [child for child in psutil.Process().children() if "rank_main" in " ".join(child.cmdline())]
        prompt = tiny_llama.chat_ids(tiny_llama.LONG_ANSWERS[0])
        two.scheduler.submit(structured_spec(1, prompt, GREEDY), 0.0)
        two.stepper.turn(0.0)
        began_s = time.monotonic()
        os.kill(max(ranks, key=lambda rank: rank.pid).pid, number)
        with pytest.raises(RankLostError, match=r"rank 1 \(process"):
            turn_for_ever(two)
        print(f"{number.name}: lost after {time.monotonic() - began_s:.2f} s")
        assert len(losses) == 1
    assert not any(rank.is_running() for rank in ranks)
