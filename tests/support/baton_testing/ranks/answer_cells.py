"""Answers whose prompts P ranks compute and D ranks continue after a hand-over, against one rank that does both."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from baton_engine.collectives.collective import SINGLE_RANK, Collective
from baton_engine.memory.kv_pool import kv_geometry
from baton_testing.engine.model_steps import ModelSteps, blocks_of, chunk, opened
from baton_testing.engine.models import write_random_model
from baton_testing.engine.quantised_models import fp8, packed, write_mxfp4, write_quantised
from baton_testing.engine.sharded_models import TOLERANCE, load_share
from baton_testing.engine.threaded_ranks import run_ranks
from baton_testing.ranks.linked_pools import Moved, linked
from baton_wire.keys import KeyDirectory

RANKS: Final = (1, 2, 4, 8)
HEADS: Final = (1, 2, 8, 32)
PROMPT: Final = [3 + 11 * at % 190 for at in range(37)]
FIRST_CHUNK: Final = 20
BLOCKS: Final = 16
ANSWER_TOKENS: Final = 5


@dataclass(frozen=True, slots=True)
class AnswerCell:
    prefill: int
    decode: int
    kv_heads: int
    weights: str
    """A key of `WEIGHTS`."""

    def __str__(self) -> str:
        return f"P{self.prefill} D{self.decode}, {self.kv_heads} KV heads, {self.weights}"


def _write_wide(folder: Path, kv_heads: int) -> Path:
    """A dense model whose parts for 8 ranks are whole blocks of 128."""
    heads = max(8, kv_heads)
    sizes = {"hidden_size": 1024, "intermediate_size": 1024, "num_hidden_layers": 2, "head_dim": 1024 // heads}
    return write_random_model(
        folder / "dense", "llama-gqa", num_attention_heads=heads, num_key_value_heads=kv_heads, **sizes
    )


def _write_bfloat16(folder: Path, kv_heads: int) -> Path:
    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 16}
    heads = {"num_attention_heads": max(8, kv_heads), "num_key_value_heads": kv_heads}
    path = write_random_model(folder, "llama-gqa", **sizes, **heads)
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(path / "model.safetensors").items()}
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


def _write_fp8(folder: Path, kv_heads: int) -> Path:
    return write_quantised(_write_wide(folder, kv_heads), folder / "fp8", fp8("block")).quantised


def _write_int4(folder: Path, kv_heads: int) -> Path:
    return write_quantised(_write_wide(folder, kv_heads), folder / "int4", packed(4, 64, symmetric=True)).quantised


def _write_mxfp4_experts(folder: Path, kv_heads: int) -> Path:
    sizes = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "head_dim": 16}
    heads = {"num_attention_heads": max(8, kv_heads), "num_key_value_heads": kv_heads}
    write_mxfp4(write_random_model(folder / "plain", "gpt-oss", **sizes, **heads), folder / "mxfp4")
    return folder / "mxfp4"


WEIGHTS: Final[dict[str, Callable[[Path, int], Path]]] = {
    "bf16": _write_bfloat16,
    "fp8": _write_fp8,
    "int4": _write_int4,
    "mxfp4 experts": _write_mxfp4_experts,
}
ANSWER_CELLS: Final = [AnswerCell(*numbers) for numbers in product(RANKS, RANKS, HEADS, WEIGHTS)]


def _steps(path: Path, collective: Collective, block_tokens: int) -> ModelSteps:
    loaded = load_share(path, collective)
    return ModelSteps(loaded, slots=1, block_tokens=block_tokens, blocks_per_slot=BLOCKS)


def _prefill(steps: ModelSteps) -> Tensor:
    """Logits [vocab] after the prompt, which is computed in two chunks."""
    steps.prefill(chunk(0, PROMPT[:FIRST_CHUNK]))
    return steps.prefill(chunk(0, PROMPT[FIRST_CHUNK:], FIRST_CHUNK))[-1]


def _decode(steps: ModelSteps, first: Tensor) -> Tensor:
    """Logits [ANSWER_TOKENS, vocab] of the greedy answer's steps, from the prompt's."""
    logits = [first]
    steps.state.open([opened(0, context=len(PROMPT))])
    for _ in range(ANSWER_TOKENS):
        logits.append(steps.decode({0: int(logits[-1].argmax())})[-1])
    return torch.stack(logits)


@dataclass(slots=True)
class AnswerCells:
    """Runs cells, over models that are written once."""

    folder: Path
    keys: KeyDirectory
    _expected: dict[tuple[int, str], tuple[Path, Tensor]] = field(default_factory=dict)

    async def run(self, cell: AnswerCell) -> float:
        """The greatest difference of a logit from one rank's. Raises AssertionError when a token is another, when ranks
        have other bits than each other, or when the difference is too large."""
        path, expected = self._model(cell)
        rng = random.Random(str(cell))
        p_tokens, d_tokens = rng.choice((4, 8, 16)), rng.choice((4, 8, 16))
        if cell.weights == "mxfp4 experts":
            d_tokens = p_tokens  # the model has windows, of which whole blocks move

        def compute(collective: Collective) -> tuple[ModelSteps, Tensor]:
            steps = _steps(path, collective, p_tokens)
            return steps, _prefill(steps)

        computed = run_ranks(cell.prefill, compute)
        waiting = run_ranks(cell.decode, lambda collective: _steps(path, collective, d_tokens))
        geometries = [
            kv_geometry(load_share(path).config, torch.float32, block_tokens) for block_tokens in (p_tokens, d_tokens)
        ]
        sources, sinks = [steps.pool for steps, _ in computed], [steps.pool for steps in waiting]
        async with linked(self.keys, (geometries[0], sources), (geometries[1], sinks)) as link:
            groups = waiting[0].model.kv_groups
            blocks, places = (_table(groups, block_tokens) for block_tokens in (p_tokens, d_tokens))
            await link.hand_over(rng.randbytes(16), Moved(len(PROMPT), 0, blocks, places))
        first = computed[0][1]
        logits = run_ranks(cell.decode, lambda collective: _decode(waiting[collective.share.rank], first))
        assert all(torch.equal(other, logits[0]) for other in logits), f"ranks of {cell} have other logits"
        assert torch.equal(logits[0].argmax(-1), expected.argmax(-1)), f"{cell} has other tokens"
        difference = float((logits[0] - expected).abs().max())
        assert difference <= TOLERANCE, f"{cell} differs by {difference:.1e}"
        return difference

    def _model(self, cell: AnswerCell) -> tuple[Path, Tensor]:
        key = cell.kv_heads, cell.weights
        if key not in self._expected:
            folder = self.folder / f"{cell.weights.partition(' ')[0]}-{cell.kv_heads}"
            folder.mkdir(parents=True)
            path = WEIGHTS[cell.weights](folder, cell.kv_heads)
            steps = _steps(path, SINGLE_RANK, 16)
            self._expected[key] = path, _decode(steps, _prefill(steps))
        return self._expected[key]


def _table(groups: int, block_tokens: int) -> tuple[int, ...]:
    """The blocks of the prompt, as `ModelSteps` places them: those of all KV groups for a place next to each other."""
    tables = [blocks_of(group, groups, BLOCKS) for group in range(groups)]
    return tuple(table[at] for at in range(-(-len(PROMPT) // block_tokens)) for table in tables)
