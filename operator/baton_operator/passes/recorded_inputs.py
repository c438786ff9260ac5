"""The inputs of a recorded template in the present normal form. Pure.

An older operator recorded quantities as they were written. They are normalised before they are compared, so that an
upgrade of the operator or another spelling of an equal value restarts nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from baton_control.spec.resource_quantities import BYTES
from baton_control.spec.resources import ResourceSpec
from baton_operator.kube.object_fields import Manifest

Normal = Callable[[object], object]


def normal_inputs(recorded: Manifest) -> Manifest:
    """The recorded inputs with every quantity in its normal form; a value that cannot be read stays as it is."""
    for path, normal in _NORMAL.items():
        recorded = _replaced(recorded, path, normal)
    return recorded


def _resources(value: object) -> object:
    return ResourceSpec.model_validate(value).model_dump(mode="json", by_alias=True)


_NORMAL: dict[tuple[str, ...], Normal] = {
    ("pool", "resources"): _resources,
    ("pool", "sharedMemory"): BYTES.normal,
    ("pool", "hugepages", "size"): BYTES.normal,
    ("gateway", "resources"): _resources,
    ("model", "cache", "size"): BYTES.normal,
}


def _replaced(inputs: Manifest, path: tuple[str, ...], normal: Normal) -> Manifest:
    """A copy of a mapping with the value at a path in its normal form."""
    name, rest = path[0], path[1:]
    value = inputs.get(name)
    if value is None:
        return inputs
    if rest:
        return {**inputs, name: _replaced(value, rest, normal)} if isinstance(value, dict) else inputs
    try:
        return {**inputs, name: normal(value)}
    except (ValidationError, PydanticCustomError):
        return inputs
