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

FAMILIES: Final = {
    "llama": "llama-gqa",
    "mistral, window": "mistral-window",
    "gemma3": "gemma3",
    "phi3": "phi3",
    "glm4": "glm4",
    "qwen3-moe": "qwen3-moe",
    "mixtral": "mixtral",
    "gpt-oss": "gpt-oss",
}


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
        source = self._folder / FAMILIES[family]
        if not source.exists():
            write_random_model(
                source, FAMILIES[family], vocab_size=VOCAB, hidden_size=64, intermediate_size=96, eos_token_id=END
            )
        if weights == "as stored":
            return source
        target = self._folder / f"{FAMILIES[family]}-{weights}"
        for form in get_args(Format):
            if form == weights:
                quantise_model(source, target, form, lambda done, of: None)
                return target
        return write_quantised(source, target, gptq(4, 32, symmetric=True, by_order=False)).quantised
