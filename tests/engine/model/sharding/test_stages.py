"""Stages that share out a model's layers compute the same bits as one process, in every family and dtype."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from baton_engine.model.loading import load_model
from baton_engine.running.drawing import DrawingRows
from baton_engine.scheduling.step_plan import StepPlan
from baton_testing.engine import quantised_models as written
from baton_testing.engine.model_steps import ModelSteps, chunk
from baton_testing.engine.models import FAMILIES, write_random_model
from baton_testing.engine.sharded_models import CPU, TOKENS, load_share, write_shareable_model
from baton_testing.engine.threaded_stages import ThreadRelay, run_stages
from baton_wire.models.errors import ModelConfigError
from baton_wire.models.sharding.stages import check_stages, stage_shares


def prefill_logits(steps: ModelSteps) -> torch.Tensor:
    """Logits of every row of prompts in chunks; none where the stage has no head."""
    rows = [steps.prefill(chunk(0, TOKENS[:25]))]
    rows.append(steps.prefill(chunk(0, TOKENS[25:33], 25), chunk(1, TOKENS[5:20])))
    return torch.cat(rows)


class StageSteps(ModelSteps):
    """The steps of a stage: those without a head have no logits."""

    def _forward(self, plan: StepPlan, drawing: DrawingRows | None) -> torch.Tensor:
        ids, rows = self.state.rows(plan, drawing)
        hidden = self.model.hidden_states(ids, rows, self.pool.tensor)
        return self.model.logits(hidden) if self.model.draws else hidden


def compare(path: Path, stages: int, dtype: torch.dtype) -> None:
    whole = ModelSteps(load_share(path, dtype=dtype))
    expected = prefill_logits(whole)

    def run(relay: ThreadRelay) -> StageSteps:
        loaded = load_model(path, dtype, CPU, relay=relay)
        steps = StageSteps(loaded)
        logits = prefill_logits(steps)
        if relay.share.is_last:
            assert torch.equal(logits, expected)
        else:
            assert not logits.numel()
        return steps

    layers = load_share(path).config.num_layers
    parts = run_stages(layers, stages, run)
    for share, part in zip(stage_shares(layers, stages), parts, strict=True):
        places = [layer.place for layer in whole.model.layers]
        for number in share.layers:
            groups = whole.model.kv_groups
            own = [block for block in range(whole.pool.num_blocks) if block % groups == places[number].kv_group]
            written_kv, expected_kv = (
                steps.pool.tensor[own, places[number].layer].nan_to_num(7.0) for steps in (part, whole)
            )
            assert torch.equal(written_kv, expected_kv)


@pytest.mark.parametrize(("at", "family"), [*enumerate(FAMILIES)])
def test_stages_have_the_bits_of_one_process(at: int, family: str, tmp_path: Path) -> None:
    dtype = (torch.float32, torch.bfloat16)[at % 2]
    compare(write_shareable_model(tmp_path, family, 2), 2 + at // 2 % 2, dtype)


@pytest.mark.parametrize("name", ["fp8-block", "packed-4-32-symmetric", "powers-mxfp8"])
def test_stages_of_quantised_weights_have_the_bits_of_one_process(name: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 3}
    dense = write_random_model(tmp_path / "dense", "qwen2", **sizes)
    stored = written.write_quantised(dense, tmp_path / name, written.forms()[name]).quantised
    compare(stored, 3, torch.float32)


def test_a_stage_reads_the_weights_of_its_own_layers(tmp_path: Path) -> None:
    path = write_shareable_model(tmp_path, "llama-gqa", 2)

    def held(relay: ThreadRelay) -> tuple[int, int, bool]:
        model = load_model(path, torch.float32, CPU, relay=relay).model
        return len(model.layers), len(model.embedding), model.draws

    assert run_stages(3, 2, held) == [(2, 199, False), (1, 0, True)]


def test_a_stage_without_a_head_has_no_logits(tmp_path: Path) -> None:
    path = write_shareable_model(tmp_path, "llama-gqa", 2)
    first, _ = run_stages(3, 2, lambda relay: load_model(path, torch.float32, CPU, relay=relay).model)
    with pytest.raises(RuntimeError, match="logits of a stage that is not the last one"):
        first.logits(torch.zeros(1, 64))


@pytest.mark.parametrize(("layers", "stages"), [(1, 1), (3, 2), (7, 3), (8, 8), (80, 4), (81, 8)])
def test_layers_are_shared_out_whole_and_nearly_equally(layers: int, stages: int) -> None:
    shares = stage_shares(layers, stages)
    assert [number for share in shares for number in share.layers] == list(range(layers))
    sizes = [len(share.layers) for share in shares]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1
    assert shares[0].is_first
    assert sum(share.is_last for share in shares) == 1


@pytest.mark.parametrize("stages", [0, 4, 9])
def test_more_stages_than_layers_are_refused_by_field(stages: int, tmp_path: Path) -> None:
    config = load_share(write_shareable_model(tmp_path, "llama-gqa", 2)).config
    with pytest.raises(ModelConfigError, match=f"pipeline_parallel: {stages} is not supported: .*allowed: 1 to 3"):
        check_stages(config, stages)
