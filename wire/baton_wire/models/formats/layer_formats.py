"""The format of each linear layer of a model, by rules over the layers' names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from baton_wire.models.errors import ModelConfigError
from baton_wire.models.formats.layer_names import LayerNames
from baton_wire.models.formats.mxfp4 import Mxfp4
from baton_wire.models.formats.weight_format import WeightFormat


@dataclass(frozen=True, slots=True)
class FormatRule:
    """Layers that the targets name are stored so."""

    targets: LayerNames
    format: WeightFormat | None
    """None: as they are."""


@dataclass(frozen=True, slots=True)
class WeightFormats:
    """The format of each linear layer by its name in the checkpoint."""

    method: str | None = None
    """`quant_method`; None: nothing is quantised."""
    rules: tuple[FormatRule, ...] = ()
    """The first one that means a layer decides."""
    ignored: LayerNames = field(default_factory=LayerNames)
    has_kv_scales: bool = False
    stacks: Mxfp4 | None = None
    """Format of experts that are stored in one tensor."""
    required: tuple[LayerNames, ...] = ()
    """Lists that must each match some layer."""

    def of(self, layer: str) -> WeightFormat | None:
        """The format of a layer such as `model.layers.0.mlp.up_proj`; None: its weight is not quantised."""
        if not self.rules or self.ignored.mean(layer):
            return None
        return next((rule.format for rule in self.rules if rule.targets.mean(layer)), None)

    def check(self, layers: Sequence[str], modules: Sequence[str]) -> None:
        """`layers` are all linear ones of the model, and the head; `modules` all that have tensors.

        Raises ModelConfigError for a name to ignore that is no module's, and for targets that mean no layer. A pattern
        to ignore may mean none: tools write the same ones for every model.
        """
        unknown = self.ignored.unknown([*layers, *modules])
        if unknown is not None:
            raise _names_nothing(self.ignored.field, unknown)
        for targets in self.required:
            if not any(targets.mean(layer) for layer in layers):
                raise _names_nothing(targets.field, targets.shown)


def _names_nothing(field: str, name: str) -> ModelConfigError:
    return ModelConfigError(
        f"quantization_config.{field}: {name!r} names no layer; allowed: names of this model's layers"
    )
