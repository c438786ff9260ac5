"""The models of the combinations: random tiny ones of each family, and copies in each weight format."""

from __future__ import annotations

from pathlib import Path
from typing import Final, get_args

import torch

from baton_engine.model.loading import LoadedModel, load_model
from baton_engine.model.quantising import Format, quantise_model
from baton_testing.engine.grammars import END, VOCAB
from baton_testing.engine.models import write_random_model
from baton_testing.engine.quantised_models import gptq, write_quantised
from baton_wire.models.errors import ModelError

NAMES: Final = {"llama": "llama-gqa", "mistral, window": "mistral-window"}
"""Models of families whose names differ in the plan."""
SIZES: Final = {
    "qwen2-moe": {"shared_expert_intermediate_size": 64},
    "granite": {"head_dim": 32},
    "granite-4-dense": {"shared_intermediate_size": 64},
}
"""Sizes that groups of columns divide, where a family's own do not."""


class Subjects:
    """Written on first use into a folder, and held."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[tuple[str, str], LoadedModel | ModelError] = {}

    def model(self, family: str, weights: str) -> LoadedModel:
        """In float32 on the CPU. Raises ModelError where the format is refused."""
        place = family, weights
        if place not in self._held:
            try:
                self._held[place] = load_model(self._directory(family, weights), torch.float32, torch.device("cpu"))
            except ModelError as error:
                self._held[place] = error
        subject = self._held[place]
        if isinstance(subject, ModelError):
            raise subject
        return subject

    def _directory(self, family: str, weights: str) -> Path:
        name = NAMES.get(family, family)
        source = self._folder / name
        if not source.exists():
            sizes = {"hidden_size": 64, "intermediate_size": 96, **SIZES.get(name, {})}
            write_random_model(source, name, vocab_size=VOCAB, eos_token_id=END, **sizes)
        if weights == "as stored":
            return source
        target = self._folder / f"{name}-{weights}"
        for form in get_args(Format):
            if form == weights:
                quantise_model(source, target, form, lambda done, of: None)
                return target
        return write_quantised(source, target, gptq(4, 32, symmetric=True, by_order=False)).quantised
