"""Models are written and loaded once per test process: saving them is slower than most tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from baton_engine.model.loading import LoadedModel, load_model
from baton_testing.engine.models import logits_of, reference_logits, reference_model, write_random_model

PROMPT_TOKENS = 41
TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class Tiny:
    """A random model on disk, in the engine, and in transformers with its logits for `tokens`."""

    directory: Path
    loaded: LoadedModel
    reference: Any
    tokens: list[int]
    logits: torch.Tensor
    tolerance: float
    """Tolerance of float32 logits: 1e-4, or three times the error of transformers' own, whichever is more."""


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tiny]:
    @cache
    def make(family: str) -> Tiny:
        directory = write_random_model(tmp_path_factory.mktemp(family), family)
        reference = reference_model(directory)
        generator = torch.Generator().manual_seed(1)
        tokens = torch.randint(3, reference.config.vocab_size, (PROMPT_TOKENS,), generator=generator).tolist()
        loaded = load_model(directory, torch.float32, torch.device("cpu"))
        logits = reference_logits(reference, tokens)
        own_error = float((logits_of(reference, tokens) - logits).abs().max())
        return Tiny(directory, loaded, reference, tokens, logits, max(TOLERANCE, 3 * own_error))

    return make
