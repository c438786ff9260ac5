"""Real ranks: the answers of one, whatever is asked; layers, pools, long plans, and what a rank refuses."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from baton_engine.collectives.collective import RankLostError
from baton_engine.memory.kv_pool import KvPool, kv_geometry
from baton_engine.ranks.rank_frames import LoadShare
from baton_engine.ranks.rank_processes import RankProcesses
from baton_engine.ranks.ranked_runner import RankedRunner
from baton_engine.running.runner import ModelRunner
from baton_engine.scheduling.events import SequenceSpec
from baton_engine.scheduling.step_plan import (
    BlockCopy,
    BlockUpdate,
    OpenSlot,
    PrefillChunk,
    Runner,
    StepPlan,
    StepResult,
)
from baton_testing.engine.model_steps import GREEDY
from baton_testing.engine.rank_group import BLOCK_TOKENS, RankGroup, rank_group
from baton_testing.engine.structured_engine import loaded, structured_engine
from baton_testing.engine.structured_workload import alone, mixed
from baton_wire.kv_shape import PoolPart, held_kv_heads
from baton_wire.messages.encoding import Encoding, EncodingKind
from baton_wire.models.errors import ModelError

CPU = torch.device("cpu")
RANKS = 2
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def group() -> Iterator[RankGroup]:
    with rank_group(RANKS) as ranks:
        yield ranks
        assert ranks.losses == []


@pytest.mark.parametrize("seed", range(4))
def test_ranks_answer_as_one_process_does(group: RankGroup, seed: int) -> None:
    """Several choices, grammars, thoughts, penalties, noise and log probabilities, all in one batch."""
    with structured_engine(ranks=group, max_step_tokens=40) as engine:
        outputs = engine.run(*mixed(seed))
    assert engine.failures == {}
    assert outputs == alone(seed)


@pytest.mark.parametrize("seed", range(2))
def test_preempted_and_continued_answers_are_the_same(group: RankGroup, seed: int) -> None:
    whole = {number: ids for (number, choice), ids in alone(seed).items() if choice == 0}
    specs = {int.from_bytes(spec.key.request, "big"): spec for spec in mixed(seed)}
    later: list[SequenceSpec] = []
    for number, ids in whole.items():
        spec = specs[number]
        cut = len(ids) // 2
        tokens = (*spec.tokens, *ids[:cut])
        later.append(SequenceSpec(spec.key, tokens, spec.prompt_tokens, (0,), spec.sampling, "", 1e9, False))
    with structured_engine(ranks=group) as engine:
        outputs = engine.run(*later)
    for number, ids in whole.items():
        assert outputs[number, 0] == ids[len(ids) // 2 :]


class Steps:
    """The same plans for one process and for the ranks."""

    def __init__(self, group: RankGroup) -> None:
        model = loaded()
        blocks = group.pools[0].num_blocks
        self.whole = KvPool(kv_geometry(model.config, torch.float32, BLOCK_TOKENS), blocks, torch.float32, CPU)
        self.one, self.ranks = ModelRunner(model, self.whole, 16), group.runner()

    def execute(self, plan: StepPlan) -> tuple[StepResult, StepResult]:
        both: list[Runner] = [self.one, self.ranks]
        one, ranks = (runner.execute(plan) for runner in both)
        return one, ranks


def table(slot: int, count: int = 8) -> tuple[BlockUpdate, ...]:
    return tuple(BlockUpdate(slot, index, 17 * slot + index) for index in range(count))


def opened(slot: int, prompt: tuple[int, ...], **fields: object) -> OpenSlot:
    return OpenSlot(slot, replace(GREEDY, **fields), 0, prompt, (), 0, None)


PROMPT = tuple(5 + 7 * index % 900 for index in range(45))


def test_log_probabilities_scores_and_encodings_are_those_of_one_process(group: RankGroup) -> None:
    steps = Steps(group)
    scored = PrefillChunk(0, 0, PROMPT, (0,), targets=PROMPT[1:], alternatives=3)
    vector = PrefillChunk(1, 0, PROMPT, encoding=Encoding(EncodingKind.EMBEDDING))
    plan = StepPlan(
        1,
        opens=(opened(0, PROMPT, logprobs=4), opened(1, PROMPT)),
        blocks=table(0) + table(1),
        prefill=(scored, vector),
    )
    one, ranks = steps.execute(plan)
    assert [entry.ids for entry in ranks.tokens] == [entry.ids for entry in one.tokens]
    own, other = (result.tokens[0].logprobs for result in (ranks, one))
    assert own is not None
    assert other is not None
    assert own[0].logprob == pytest.approx(other[0].logprob, abs=TOLERANCE)
    assert [token for token, _ in own[0].top] == [token for token, _ in other[0].top]
    for mine, theirs in zip(ranks.scored[0].logprobs, one.scored[0].logprobs, strict=True):
        assert mine.logprob == pytest.approx(theirs.logprob, abs=TOLERANCE)
    vectors = [torch.frombuffer(bytearray(result.encoded[0].values), dtype=torch.float32) for result in (ranks, one)]
    torch.testing.assert_close(*vectors, rtol=0, atol=TOLERANCE)


def test_each_rank_writes_the_kv_of_its_own_heads_where_the_worker_reads_it(group: RankGroup) -> None:
    steps = Steps(group)
    steps.execute(StepPlan(1, opens=(opened(2, PROMPT),), blocks=table(2), prefill=(PrefillChunk(2, 0, PROMPT, (2,)),)))
    steps.execute(StepPlan(2, copies=(BlockCopy(34, 300), BlockCopy(35, 301)), decode=(2,), closes=(2,)))
    written = [34, 35, 300, 301]
    for rank, pool in enumerate(group.pools):
        heads = held_kv_heads(2, rank, RANKS)
        expected = steps.whole.tensor[written, :, :, heads.start : heads.stop]
        torch.testing.assert_close(pool.tensor[written], expected, rtol=0, atol=TOLERANCE)
        assert pool.geometry.whole == PoolPart(0, 4, 0, len(heads))


def test_layers_are_reported_when_every_rank_has_written_them(group: RankGroup) -> None:
    runner = group.runner()
    seen: list[tuple[int, int, torch.Tensor]] = []
    runner.watch_layers(lambda step, layers: seen.append((step, layers, group.pools[-1].tensor[51:53].clone())))
    try:
        long = PROMPT * 40
        plan = StepPlan(7, opens=(opened(3, long),), blocks=table(3, 120), prefill=(PrefillChunk(3, 0, long),))
        runner.execute(plan)
        layers = [layers for _, layers, _ in seen]
        assert {step for step, _, _ in seen} == {7}
        assert len(layers) > 1
        assert layers == sorted(set(layers))
        assert layers[-1] == 4
        for _, count, kv in seen:
            assert torch.equal(kv[:, :count], group.pools[-1].tensor[51:53, :count])
    finally:
        runner.watch_layers(lambda step, layers: None)


def test_a_plan_that_is_larger_than_the_ring_passes(group: RankGroup) -> None:
    steps = Steps(group)
    history = tuple(index % 1_000 for index in range(1_500_000))
    plan = StepPlan(
        1,
        opens=(opened(0, history, repetition_penalty=1.5),),
        blocks=table(0),
        prefill=(PrefillChunk(0, 0, PROMPT, (0,)),),
    )
    one, ranks = steps.execute(plan)
    assert ranks.tokens == one.tokens


def test_steps_are_launched_before_earlier_ones_are_collected(group: RankGroup) -> None:
    steps = Steps(group)
    runner = steps.ranks
    assert not runner.is_done()
    first = StepPlan(1, opens=(opened(0, PROMPT),), blocks=table(0), prefill=(PrefillChunk(0, 0, PROMPT, (0,)),))
    expected = [steps.one.execute(first)] + [steps.one.execute(StepPlan(step, decode=(0,))) for step in range(2, 8)]
    runner.launch(first)
    results = []
    for step in range(2, 8):
        runner.launch(StepPlan(step, decode=(0,)))
        with pytest.raises(RuntimeError, match="another step is in flight"):
            runner.execute(StepPlan(9))
        results.append(runner.collect())
    results.append(runner.collect())
    assert [result.tokens for result in results] == [result.tokens for result in expected]
    with pytest.raises(RuntimeError, match="no step was launched"):
        runner.collect()


def answer(runner: RankedRunner, tokens: int = 11) -> list[int]:
    begin = StepPlan(1, opens=(opened(0, PROMPT),), blocks=table(0), prefill=(PrefillChunk(0, 0, PROMPT, (0,)),))
    plans = [begin, *(StepPlan(step, decode=(0,)) for step in range(2, 1 + tokens))]
    return [runner.execute(plan).tokens[0].ids[0] for plan in plans]


def test_a_rank_that_crawls_slows_the_others_and_all_draw_the_same(group: RankGroup) -> None:
    expected = answer(group.runner())
    over = threading.Event()

    def hold_up() -> None:
        while not over.is_set():
            os.kill(group.pids[1], signal.SIGSTOP)
            time.sleep(0.1)
            os.kill(group.pids[1], signal.SIGCONT)
            time.sleep(0.01)

    thread = threading.Thread(target=hold_up)
    thread.start()
    try:
        assert answer(group.runner()) == expected
    finally:
        over.set()
        thread.join(60)
    assert group.losses == []


def test_a_step_without_work_is_over_at_once(group: RankGroup) -> None:
    result = group.runner().execute(StepPlan(1))
    assert (result.step, result.tokens) == (1, ())


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (LoadShare("/nonexistent", None, None, 1), "no such model directory"),
        (LoadShare("random:///nonexistent/config.json", None, None, 1), "cannot be read"),
    ],
)
def test_a_model_that_a_rank_refuses_is_refused_by_its_text(order: LoadShare, message: str) -> None:
    processes = RankProcesses.start(RANKS)
    try:
        with pytest.raises(ModelError, match=message):
            processes.load(order)
        with pytest.raises(ModelError, match=message):
            processes.send(order)
    finally:
        processes.close()
    assert not [pid for pid in processes.pids if Path(f"/proc/{pid}").exists()]


def test_ranks_that_are_closed_cannot_be_used() -> None:
    processes = RankProcesses.start(1)
    lost: list[RankLostError] = []
    processes.watch_loss(lost.append)
    processes.close()
    with pytest.raises(RankLostError, match="the ranks were ended"):
        processes.is_done(1)
    assert lost == []
    assert not [pid for pid in processes.pids if Path(f"/proc/{pid}").exists()]
