"""The recorded facts of a published checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

Config = dict[str, Any]
ALL: Final = r".*(?<!\.gate)(?<!\.router)(?<!lm_head)$"
"""Linear layers but for routers and the head."""


@dataclass(frozen=True)
class Published:
    """A checkpoint without quantised weights."""

    config: Config
    billions: float
    """Parameters of its language model, by its makers' count of the file."""


@dataclass(frozen=True)
class Quantised:
    """A checkpoint whose weights are quantised."""

    base: str
    """Name in `PUBLISHED` of the model that it was made of."""
    section: Config
    """Its `quantization_config`."""
    stored: tuple[tuple[str, str], ...] = ()
    """Pattern of layers' names, way of storing; the first that fits. Layers that none fits are as they were."""
    beside: tuple[str, ...] = ()
    """Tensors of one number next to each quantised weight."""
    extra: tuple[str, ...] = ()
    """Further tensors, of zeros."""
    fields: Config = field(default_factory=dict)
    """Fields of config.json that differ from the base's."""
    refused: str = ""
    """Text of the refusal; empty: the checkpoint is served."""


def without(config: Config, *names: str) -> Config:
    return {name: value for name, value in config.items() if name not in names}
