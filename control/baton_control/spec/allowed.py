"""The allowed values of a field, in words: derived from the API types, so that messages and reference stay true."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Iterable

from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic.fields import FieldInfo

from baton_control.spec.api import LLMDeployment
from baton_control.spec.base_model import Model
from baton_control.spec.quantities import Quantity
from baton_control.spec.resource_quantities import Allowed, AllowedValues


def allowed_at(location: tuple[int | str, ...], root: type[Model] = LLMDeployment) -> str:
    """The allowed values at a place in an object, in words that fit after "must be"."""
    annotation: object = root
    metadata: tuple[object, ...] = ()
    key: object = str
    for part in location:
        if part == "[key]":  # pydantic adds this part when it refuses the key of a mapping
            return f"named by {describe(key)}"
        outer, _ = unwrapped(annotation, ())
        key = typing.get_args(outer)[0] if typing.get_origin(outer) is dict else str
        annotation, metadata = _inside(annotation, part)
    return describe(annotation, metadata)


def known_at(location: tuple[int | str, ...], root: type[Model] = LLMDeployment) -> str:
    """The fields that an object may have at a place."""
    model = model_at(location, root)
    return ", ".join(fields_of(model)) if model else "none"


def model_at(location: tuple[int | str, ...], root: type[Model] = LLMDeployment) -> type[Model] | None:
    """The API model at a place of an object; None: there is no mapping of fixed fields."""
    annotation: object = root
    for part in location:
        annotation, _ = _inside(annotation, part)
    return model_of(annotation)


def words_of(field: FieldInfo) -> str:
    """The description of a field: its own docstring, or that of its model; empty if there is none.

    `kubectl explain` and the reference page show it.
    """
    model = model_of(field.annotation)
    return " ".join((field.description or (model and model.__doc__) or "").split())


def fields_of(model: type[Model]) -> dict[str, FieldInfo]:
    """The fields of a model under the names that manifests use."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def describe(annotation: object, metadata: Iterable[object] = ()) -> str:
    """The allowed values of a type with its annotations, in words."""
    annotation, metadata = unwrapped(annotation, tuple(metadata))
    allowed = next((item for item in metadata if isinstance(item, Allowed)), None)
    if isinstance(allowed, AllowedValues):
        return allowed.text
    return (_plain(annotation) if allowed is None else allowed.text) + _bounds(metadata)


def model_of(annotation: object) -> type[Model] | None:
    """The API model in an annotation, with or without `| None`; None: it is no model."""
    annotation, _ = unwrapped(annotation, ())
    return annotation if isinstance(annotation, type) and issubclass(annotation, Model) else None


def _inside(annotation: object, part: int | str) -> tuple[object, tuple[object, ...]]:
    annotation, _ = unwrapped(annotation, ())
    model = model_of(annotation)
    if model is not None:
        field = fields_of(model).get(str(part))
        return (field.annotation, tuple(field.metadata)) if field else (object, ())
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is tuple:
        return unwrapped(arguments[0], ())
    if typing.get_origin(annotation) is dict:
        return unwrapped(arguments[1], ())
    return annotation, ()


def unwrapped(annotation: object, metadata: tuple[object, ...]) -> tuple[object, tuple[object, ...]]:
    """Strip `Annotated` and `| None`, and collect the metadata, the outermost first."""
    while True:
        arguments = typing.get_args(annotation)
        if typing.get_origin(annotation) is typing.Annotated:
            annotation, metadata = arguments[0], (*metadata, *_flat(arguments[1:]))
        elif typing.get_origin(annotation) in (typing.Union, types.UnionType):
            annotation = next(argument for argument in arguments if argument is not type(None))
        else:
            return annotation, tuple(_flat(metadata))


def _flat(metadata: Iterable[object]) -> Iterable[object]:
    for item in metadata:
        if isinstance(item, FieldInfo):
            yield from item.metadata
        else:
            yield item


def _plain(annotation: object) -> str:
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return "a mapping with " + ", ".join(fields_of(annotation))
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return "one of " + ", ".join(str(member.value) for member in annotation)
    if typing.get_origin(annotation) is typing.Literal:
        choices = typing.get_args(annotation)
        return f"'{choices[0]}'" if len(choices) == 1 else "one of " + ", ".join(choices)
    if typing.get_origin(annotation) is tuple:
        return "a list"
    if typing.get_origin(annotation) is dict:
        value, _ = unwrapped(typing.get_args(annotation)[1], ())
        return f"a mapping of text to {'integers' if value is int else 'text'}"
    names = {bool: "true or false", int: "an integer", float: "a number", str: "text"}
    return names.get(annotation, "known") if isinstance(annotation, type) else "known"


def _bounds(metadata: Iterable[object]) -> str:
    items = tuple(metadata)
    quantity = next((item for item in items if isinstance(item, Quantity)), None)
    low = next((item.ge for item in items if isinstance(item, Ge)), None)
    high = next((item.le for item in items if isinstance(item, Le)), None)
    most = next((item.max_length for item in items if isinstance(item, MaxLen)), None)
    if low is not None and high is not None:
        return f" from {_number(low, quantity)} to {_number(high, quantity)}"
    if most is not None and not any(isinstance(item, Allowed) for item in items):
        least = next((item.min_length for item in items if isinstance(item, MinLen)), 0)
        return f" of {least} to {most} entries" if least else f" of at most {most} entries"
    return ""


def _number(value: object, quantity: Quantity[float] | None) -> str:
    assert isinstance(value, int | float)
    return quantity.show(value) if quantity else f"{value}"
