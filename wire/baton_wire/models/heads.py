"""The head of a checkpoint, by its `architectures`: logits of tokens, scores of labels, or none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from baton_wire.models.config_fields import ConfigFields

MAX_LABELS: Final = 1_024
_GENERATES: Final = "ForCausalLM"
_CLASSIFIES: Final = "ForSequenceClassification"
_SIGMOIDS: Final = ("torch.nn.modules.activation.Sigmoid", "torch.nn.Sigmoid")
_IDENTITIES: Final = ("torch.nn.modules.linear.Identity", "torch.nn.Identity")


@dataclass(frozen=True, slots=True)
class Head:
    """A checkpoint's head."""

    generates: bool = True
    labels: int = 0
    label_activation: bool = True
    """As in `DecoderSpec`."""


def read_head(fields: ConfigFields, architecture: str) -> Head:
    """The head of a family's model. `architecture`: the family's class that generates. Raises ModelConfigError."""
    base = architecture.removesuffix(_GENERATES)
    bodies = (f"{base}Model", f"{base}TextModel")
    classifiers = (f"{base}{_CLASSIFIES}", f"{base}Text{_CLASSIFIES}")
    names = fields.raw("architectures")
    if names is None or names == [architecture]:
        return Head()
    if isinstance(names, list) and len(names) == 1 and names[0] in bodies:
        return Head(generates=False)
    if isinstance(names, list) and len(names) == 1 and names[0] in classifiers:
        return Head(generates=False, labels=_read_labels(fields), label_activation=_read_activation(fields))
    allowed = " or ".join(f'["{name}"]' for name in (architecture, bodies[0], classifiers[0]))
    raise fields.error("architectures", f"{allowed} for this model_type")


def _read_labels(fields: ConfigFields) -> int:
    names = fields.raw("id2label")
    if names is None:
        return fields.integer("num_labels", 2, maximum=MAX_LABELS)
    if not isinstance(names, dict) or not 1 <= len(names) <= MAX_LABELS:
        raise fields.error("id2label", f"an object of 1 to {MAX_LABELS} names")
    if any(not isinstance(name, str) or len(name) > 256 for name in names.values()):
        raise fields.error("id2label", "names of at most 256 characters")
    if set(names) != {str(number) for number in range(len(names))}:
        raise fields.error("id2label", f'names for "0" to "{len(names) - 1}"')
    if fields.has("num_labels"):
        fields.only("num_labels", len(names), f"{len(names)}, the number of names in id2label")
    return len(names)


def _read_activation(fields: ConfigFields) -> bool:
    """True if scores are probabilities, by a cross-encoder's folder; they are if it does not say."""
    return read_activation(fields.section("sentence_transformers")) if fields.has("sentence_transformers") else True


def read_activation(fields: ConfigFields) -> bool:
    """True if scores are probabilities, by the `activation_fn` of a cross-encoder. Raises ModelConfigError."""
    name = fields.text("activation_fn", _SIGMOIDS[0])
    if name not in (*_SIGMOIDS, *_IDENTITIES):
        raise fields.error("activation_fn", f"{_SIGMOIDS[0]} or {_IDENTITIES[0]}")
    return name in _SIGMOIDS
