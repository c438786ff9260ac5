"""Real stages of a pipeline: the prompts' tokens and KV of one process, several steps at once, and lost stages."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from baton_engine.collectives.collective import RankLostError
from baton_engine.memory.kv_pool import KvPool, kv_geometry
from baton_engine.running.runner import ModelRunner
from baton_engine.scheduling.step_plan import BlockCopy, BlockUpdate, OpenSlot, PrefillChunk, StepPlan
from baton_testing.engine.model_steps import GREEDY
from baton_testing.engine.rank_group import BLOCK_TOKENS, RankGroup, rank_group
from baton_testing.engine.structured_engine import loaded

CPU = torch.device("cpu")
PROMPT = tuple(5 + 7 * index % 900 for index in range(90))


@pytest.fixture(scope="module", params=[2, 4], ids=["2-stages", "4-stages"])
def group(request: pytest.FixtureRequest) -> Iterator[RankGroup]:
    with rank_group(request.param, are_stages=True) as stages:
        yield stages
        assert stages.losses == []


def table(slot: int, count: int = 8) -> tuple[BlockUpdate, ...]:
    return tuple(BlockUpdate(slot, index, 17 * slot + index) for index in range(count))


def opened(slot: int, **fields: object) -> OpenSlot:
    return OpenSlot(slot, replace(GREEDY, **fields), 0, PROMPT, (), 0, None)


def chunks() -> list[StepPlan]:
    """Two prompts: one in four chunks, the other in one, with log probabilities, penalties and scores."""
    first = StepPlan(1, opens=(opened(0, logprobs=3),), blocks=table(0), prefill=(PrefillChunk(0, 0, PROMPT[:20]),))
    second = StepPlan(2, prefill=(PrefillChunk(0, 20, PROMPT[20:40]),))
    other = PrefillChunk(1, 0, PROMPT[7:50], (1,), targets=PROMPT[8:51], alternatives=2)
    third = StepPlan(
        3,
        opens=(opened(1, repetition_penalty=1.4, temperature=1.0, seed=3),),
        blocks=table(1),
        prefill=(PrefillChunk(0, 40, PROMPT[40:70]), other),
    )
    kept = StepPlan(4, prefill=(PrefillChunk(0, 70, PROMPT[70:], keeps=True),), closes=(1,))
    late = StepPlan(5, prefill=(PrefillChunk(0, 90, (), (0,)),), closes=(0,))
    return [first, second, third, kept, late]


def test_stages_draw_score_and_write_what_one_process_does(group: RankGroup) -> None:
    model, (pool,) = loaded(), group.pools
    whole = KvPool(kv_geometry(model.config, torch.float32, BLOCK_TOKENS), pool.num_blocks, torch.float32, CPU)
    one, stages = ModelRunner(model, whole, 16), group.runner()
    for plan in chunks():
        expected, result = one.execute(plan), stages.execute(plan)
        assert (result.step, result.tokens, result.scored) == (expected.step, expected.tokens, expected.scored)
    written = [update.block for update in (*table(0, 6), *table(1, 3))]
    assert torch.equal(pool.tensor[written], whole.tensor[written])


def test_every_stage_has_a_step_in_hand(group: RankGroup) -> None:
    runner = group.runner()
    expected = [runner.execute(plan) for plan in chunks()]
    for plan in chunks():
        runner.launch(plan)
    results = [runner.collect() for _ in expected]
    assert [(result.step, result.tokens) for result in results] == [(r.step, r.tokens) for r in expected]


def test_layers_are_announced_stage_by_stage_and_one_step_after_the_other(group: RankGroup) -> None:
    runner = group.runner()
    seen: list[tuple[int, int]] = []
    runner.watch_layers(lambda step, layers: seen.append((step, layers)))
    long = PROMPT * 20
    for step in (1, 2):
        opens, blocks = (opened(0),), table(0, 120)
        runner.launch(StepPlan(step, opens=opens, blocks=blocks, prefill=(PrefillChunk(0, 0, long),)))
    for _ in range(2):
        runner.collect()
    runner.watch_layers(lambda step, layers: None)
    assert seen == sorted(set(seen))
    assert len([entry for entry in seen if entry[0] == 1]) > 1
    assert seen[-1] == (2, 4)


def test_a_plan_with_decode_rows_or_forks_is_refused(group: RankGroup) -> None:
    runner = group.runner()
    for plan in (StepPlan(1, decode=(0,)), StepPlan(1, copies=(BlockCopy(1, 2),))):
        with pytest.raises(RuntimeError, match="not for the stages of a prefill worker"):
            runner.launch(plan)


@pytest.mark.parametrize(("stage", "number"), [(0, signal.SIGKILL), (1, signal.SIGKILL), (1, signal.SIGSTOP)])
def test_a_lost_stage_ends_all_by_name(stage: int, number: signal.Signals) -> None:
    with rank_group(2, are_stages=True) as group:
        runner, pids = group.runner(), group.pids
        runner.execute(chunks()[0])
        os.kill(pids[stage], number)

        def run_on() -> None:
            for plan in chunks()[1:]:
                runner.execute(plan)

        with pytest.raises(RankLostError, match=rf"^rank {stage} \(process {pids[stage]}\)"):
            run_on()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
