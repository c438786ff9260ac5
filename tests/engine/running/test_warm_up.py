"""A runner's warm-up must run what its steps run later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from baton_engine.model.layers.attention import StepRows
from baton_engine.running.warm_up import warm_up
from baton_testing.engine.model_steps import make_pool

ALIGNED_BYTES = 16
"""Triton compiles anew for a pointer that is not a multiple of this; a step's tensors all are."""


def tensors(rows: Any) -> list[torch.Tensor]:
    if isinstance(rows, torch.Tensor):
        return [rows]
    inner = fields(rows) if is_dataclass(rows) else ()
    return [tensor for field in inner for tensor in tensors(getattr(rows, field.name))]


class Watched:
    """A model that keeps the rows it is given."""

    def __init__(self, model: Any) -> None:
        self.model, self.seen = model, list[StepRows]()
        self.kv_groups, self.embedding, self.vocabulary = model.kv_groups, model.embedding, model.vocabulary
        self.drawn_logits, self.draws = model.drawn_logits, model.draws

    def hidden_states(self, ids: torch.Tensor, rows: StepRows, pool: torch.Tensor) -> Any:
        self.seen.append(rows)
        return self.model.hidden_states(ids, rows, pool)


def test_rows_to_warm_up_with_are_aligned_as_those_of_a_step(tiny: Callable[[str], Any]) -> None:
    loaded = tiny("llama-gqa").loaded
    watched: Any = Watched(loaded.model)
    warm_up(watched, make_pool(loaded, 4).tensor, loaded.config.vocab_size, loaded.max_context_tokens)
    addresses = [tensor.data_ptr() for rows in watched.seen for tensor in tensors(rows)]
    assert len(addresses) >= 2 * 5
    assert not [address for address in addresses if address % ALIGNED_BYTES]
