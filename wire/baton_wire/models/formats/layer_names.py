"""Which layers a list of a `quantization_config` means: names, patterns, wildcards, or parts of names.

The tools that write such lists read them differently; `Matching` says how. Patterns come from files: they are bounded
so that matching ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import translate
from typing import Final

from baton_wire.models.config_fields import ConfigFields
from baton_wire.models.errors import ModelConfigError
from baton_wire.models.wrappers import spellings, text_name

LINEAR_CLASS: Final = "Linear"
PATTERN: Final = "re:"
_MAX_PATTERN: Final = 256
_MAX_REPEATS: Final = 4
"""Most repeats in a pattern from a file, so that matching it ends."""
_SIMPLE: Final = re.compile(r"(?:[\w\-/ ]|\\[.dw\-]|[.^$|*+?]|\[[\w\-]+\]|\((?:\?:)?|\)(?![*+{]))*")


class Matching(Enum):
    """Meaning of a name in a list: the module of that name with everything in it, and what the mode adds."""

    WHOLE = "whole"
    """Nothing else (compressed-tensors)."""
    TAIL = "tail"
    """Modules whose names end with it too (transformers' fp8)."""
    PART = "part"
    """Modules whose names have it anywhere (AutoAWQ)."""
    WILDCARD = "wildcard"
    """Modules that it fits with * for anything (ModelOpt)."""


@dataclass(frozen=True, slots=True)
class LayerNames:
    """Layers by the names that a list gives them."""

    names: frozenset[str] = frozenset()
    """Names of modules, as the language model alone has them."""
    tails: frozenset[str] = frozenset()
    parts: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    every_linear: bool = False
    """All but the head."""
    field: str = ""
    """Where they are listed."""

    def __or__(self, other: LayerNames) -> LayerNames:
        return LayerNames(
            self.names | other.names,
            self.tails | other.tails,
            self.parts + other.parts,
            self.patterns + other.patterns,
            self.every_linear or other.every_linear,
            " or ".join(filter(None, (self.field, other.field))),
        )

    @property
    def shown(self) -> str:
        """Some of the names, for messages."""
        return ", ".join([*sorted(self.names), *self.parts, *(PATTERN + pattern for pattern in self.patterns)][:3])

    def mean(self, layer: str) -> bool:
        """True if the layer, or a module that holds it, is in the list."""
        if self.every_linear and layer != "lm_head":
            return True
        if self.names and not self.names.isdisjoint(_holders(layer)):
            return True
        if self.tails and not self.tails.isdisjoint(_tails(layer)):
            return True
        if any(part in layer for part in self.parts):
            return True
        return bool(self.patterns) and any(
            re.match(pattern, spelled) for pattern in self.patterns for spelled in spellings(layer)
        )

    def unknown(self, modules: Iterable[str]) -> str | None:
        """A name, not a pattern, that means none of a model's modules; None: there is none."""
        if not self.names and not self.parts:
            return None
        known = {holder for module in modules for holder in _holders(module)}
        tails = {tail for module in known for tail in _tails(module)} if self.tails else set[str]()
        for name in sorted(self.names):
            if name not in known and not (name in self.tails and name in tails):
                return name
        return next((part for part in self.parts if not any(part in module for module in known)), None)


def read_names(fields: ConfigFields, field: str, matching: Matching = Matching.WHOLE) -> LayerNames:
    """Read a list of names; an absent one is empty. Raises ModelConfigError."""
    value = fields.raw(field)
    if value is None:
        return LayerNames()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise fields.error(field, "a list of names")
    return layer_names(value, matching, field)


def layer_names(given: Sequence[str], matching: Matching, field: str) -> LayerNames:
    """Raises ModelConfigError for a name that is empty and for a pattern that could match for long."""
    names, parts, patterns, every = set[str](), list[str](), list[str](), False
    for item in given:
        pattern = None
        if item.startswith(PATTERN):
            pattern = item.removeprefix(PATTERN)
        elif matching is Matching.WILDCARD and "*" in item:
            pattern = translate(item) if re.fullmatch(r"[\w.*\-/ ]+", item) and item.count("*") <= _MAX_REPEATS else ""
        if not item or (pattern is not None and not pattern):
            raise _refused(field, item)
        if pattern is not None:
            if item.startswith(PATTERN) and not is_simple(pattern):
                raise _refused(field, item)
            patterns.append(pattern)
        elif item == LINEAR_CLASS:
            every = True
        elif (own := text_name(item)) is None:
            continue  # of a part for images, which is not read
        elif matching is Matching.PART:
            parts.append(item)
        else:
            names.add(own)
    whole = frozenset(names)
    tails = whole if matching is Matching.TAIL else frozenset[str]()
    return LayerNames(whole, tails, tuple(parts), tuple(patterns), every, field)


def is_simple(pattern: str) -> bool:
    """True if a pattern compiles and can't be made to match for long."""
    repeats = sum(pattern.count(sign) for sign in "*+")
    if len(pattern) > _MAX_PATTERN or repeats > _MAX_REPEATS or not _SIMPLE.fullmatch(pattern):
        return False
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def _refused(field: str, item: str) -> ModelConfigError:
    return ModelConfigError(f"quantization_config.{field}: {item!r} is not supported; allowed: simple patterns")


def _holders(layer: str) -> Iterator[str]:
    """The layer and the modules that hold it."""
    yield layer
    while (at := layer.rfind(".")) > 0:
        layer = layer[:at]
        yield layer


def _tails(layer: str) -> Iterator[str]:
    """Ends of the layer's name: q_proj, self_attn.q_proj and so on."""
    at = len(layer)
    while (at := layer.rfind(".", 0, at)) > 0:
        yield layer[at + 1 :]
