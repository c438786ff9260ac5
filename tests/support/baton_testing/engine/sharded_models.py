"""Tiny models that up to 8 ranks can share, and their logits over prompts and decoding steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from baton_engine.collectives.collective import SINGLE_RANK, Collective
from baton_engine.model.loading import LoadedModel, load_model
from baton_testing.engine.model_steps import ModelSteps, chunk
from baton_testing.engine.models import FAMILIES, write_random_model
from baton_testing.engine.threaded_ranks import run_ranks

CPU: Final = torch.device("cpu")
DEGREES: Final = (2, 4, 8)
KV_HEADS: Final = (1, 2, 8)
TOKENS: Final = list(range(3, 60))
TOLERANCE: Final = 1e-5
OWN_ERROR: Final = {"gemma3": 5e-5}
"""Tolerances of families whose logits in float32 are themselves further than that from those in float64: Gemma 3's by
7e-5, as four norms a layer multiply by about two each."""


def write_shareable_model(directory: Path, family: str, kv_heads: int, **overrides: Any) -> Path:
    """Save a random model of a family with 8 attention heads, whose blocks divide by 8."""
    own = FAMILIES[family]
    fields: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": kv_heads}
    fields |= {"hidden_size": 64, "intermediate_size": 64}
    fields |= {name: 32 for name in ("moe_intermediate_size", "shared_expert_intermediate_size") if name in own}
    if own["model_type"] == "llama" or "head_dim" in own:
        fields["head_dim"] = 16  # one for all: kernels are compiled for each
    if family == "phi3-longrope":  # three rotated pairs of a head
        factors = {"short_factor": [1.0, 1.1, 1.2], "long_factor": [1.0, 2.0, 3.0]}
        fields["rope_parameters"] = {**own["rope_parameters"], **factors}
    return write_random_model(directory, family, **(fields | overrides))


def load_share(
    path: Path | str, collective: Collective = SINGLE_RANK, dtype: torch.dtype = torch.float32
) -> LoadedModel:
    return load_model(path, dtype, CPU, collective=collective)


def logits_over_steps(loaded: LoadedModel) -> Tensor:
    """Logits of every row: a prompt, the rest of it in one step with another one, and both decoding."""
    steps = ModelSteps(loaded)
    rows = [steps.prefill(chunk(0, TOKENS[:25]))]
    rows.append(steps.prefill(chunk(0, TOKENS[25:33], 25), chunk(1, TOKENS[5:20])))
    rows += [steps.decode({0: TOKENS[33 + at], 1: TOKENS[20 + at]}) for at in range(4)]
    return torch.cat(rows)


def logits_of_ranks(path: Path | str, ranks: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The same of a model shared by ranks, which all have the same bits."""
    every: Sequence[Tensor] = run_ranks(
        ranks, lambda collective: logits_over_steps(load_share(path, collective, dtype))
    )
    assert all(torch.equal(own, every[0]) for own in every), "ranks have different logits"
    return every[0]
