"""Models for text and images whose language model is a family of its own. That part alone is served.

Their config.json holds the language model's as `text_config`. Their tensors are named in one of two ways, by when they
were saved; here they are brought to the names that the language model has alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from baton_wire.models.config_fields import ConfigFields

_STARTS: Final = (
    ("language_model.model.", "model."),
    ("model.language_model.", "model."),
    ("language_model.lm_head", "lm_head"),
)
_OTHER_PARTS: Final = ("vision_tower", "multi_modal_projector", "vision_model", "visual")
"""Modules for images, at the top or after `model.`."""


@dataclass(frozen=True, slots=True)
class Wrapper:
    """One such `model_type`."""

    architecture: str
    families: tuple[str, ...]
    """Allowed `model_type`s of the language model."""
    defaults: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    """transformers' own, which published files leave out."""


WRAPPERS: Final = MappingProxyType[str, Wrapper](
    {
        "gemma3": Wrapper(
            "Gemma3ForConditionalGeneration",
            ("gemma3_text",),
            MappingProxyType(
                {
                    "vocab_size": 262_208,
                    "hidden_size": 2_304,
                    "intermediate_size": 9_216,
                    "num_hidden_layers": 26,
                    "num_attention_heads": 8,
                    "num_key_value_heads": 4,
                }
            ),
        ),
        "llama4": Wrapper("Llama4ForConditionalGeneration", ("llama4_text",)),
        "mistral3": Wrapper("Mistral3ForConditionalGeneration", ("mistral", "ministral3")),
    }
)


def language_model(whole: ConfigFields) -> ConfigFields:
    """The language model's own fields of a config.json: all of them, or those of a wrapper's `text_config`. Raises
    ModelConfigError."""
    wrapper = WRAPPERS.get(whole.text("model_type"))
    if wrapper is None:
        return whole
    whole.only("architectures", [wrapper.architecture], f'["{wrapper.architecture}"] for this model_type')
    text = whole.section("text_config")
    if (family := text.text("model_type", wrapper.families[0])) not in wrapper.families:
        raise text.error("model_type", " or ".join(f'"{allowed}"' for allowed in wrapper.families))
    given = {name: text.raw(name) for name in text.names() if text.has(name) or name not in wrapper.defaults}
    own = {"model_type": family, "architectures": None}
    return ConfigFields({**wrapper.defaults, **given, **own}, "text_config.")


def text_name(name: str) -> str | None:
    """The name of a tensor or module in the language model alone; None: it belongs to a part for images."""
    for start, own in _STARTS:
        if name.startswith(start):
            return own + name[len(start) :]
    bare = name.removeprefix("model.")
    return None if bare.startswith(_OTHER_PARTS) else name


def spellings(layer: str) -> tuple[str, ...]:
    """A layer's names in files: alone, and in both ways within a wrapper."""
    return (layer, *(start + layer[len(own) :] for start, own in _STARTS if layer.startswith(own)))
