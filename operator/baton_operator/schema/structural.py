"""From the API's pydantic models to structural OpenAPI v3 schemas, as CustomResourceDefinitions want them.

Every model is written out where it is used: structural schemas know no references and no alternatives. Everything is
bounded, because CEL's cost estimate is made of bounds: a text, list or mapping without one is an error here.
`| None` means that the field may be absent; the API server drops a null.
"""

from __future__ import annotations

import enum
import typing
from collections.abc import Iterable

from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import StringConstraints
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from baton_control.spec.allowed import describe, fields_of, model_of, unwrapped, words_of
from baton_control.spec.api import DeploymentSpec
from baton_control.spec.base_model import Model
from baton_control.spec.count_or_percent import CountOrPercentField
from baton_control.spec.foreign_fields import FOREIGN, ForeignField, ForeignType
from baton_control.spec.model_source import ALLOWED, source_pattern
from baton_control.spec.quantities import Quantity
from baton_control.spec.resource_quantities import LONGEST_SPELLING, Allowed, ResourceQuantity
from baton_operator.schema.cel import ABSOLUTE, NO_PARENT, RULES
from baton_operator.schema.status import ListKey
from baton_operator.schema.value_rules import (
    Rule,
    count_or_percent_rule,
    keys_match,
    matches,
    quantity_rule,
    size_rule,
)

Schema = dict[str, object]
NOT_FILLED = ((DeploymentSpec, "decode"),)
"""Fields whose default the API server must not fill in: where one is absent, it may have to be."""
MAX_INT32 = (1 << 31) - 1
LONGEST_DURATION = 18


class UnboundedError(TypeError):
    """A type that cannot be written as a bounded structural schema."""


def schema_of(annotation: object, metadata: Iterable[object] = (), *, in_list: bool = False) -> Schema:
    """The schema of a type. Raises UnboundedError, which names the type, for what has no bound or no schema. `in_list`:
    an entry of a list, which gets no defaults: clients that compare lists as a whole would differ for ever."""
    annotation, items = unwrapped(annotation, tuple(metadata))
    model = model_of(annotation)
    if model is not None:
        return _with_rules(_object(model, in_list=in_list), RULES.get(model, ()))
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is tuple:
        return _list(arguments[0], items)
    if origin is dict:
        return _mapping(arguments[0], arguments[1], items)
    if origin is typing.Literal:
        return {"type": "string", "enum": list(arguments)}
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return {"type": "string", "enum": [str(member.value) for member in annotation]}
    quantity = _first(items, Quantity)
    if quantity is not None:
        return _quantity(quantity, items)
    share = _first(items, CountOrPercentField)
    if share is not None:
        return _with_rules(_integer_or_text(), (count_or_percent_rule(share.most, f"must be {share.text}"),))
    resource = _first(items, ResourceQuantity)
    if resource is not None:
        rule = size_rule(resource.pattern, None, resource.most, f"must be {resource.text}")
        return _with_rules(_integer_or_text(), (rule,))
    if annotation is bool:
        return {"type": "boolean"}
    if annotation in (int, float):
        return _number(annotation, items)
    if annotation is str:
        return _text(items)
    raise UnboundedError(f"{annotation!r} has no structural schema")


def default_of(field: FieldInfo) -> object:
    """The default that the API server fills in for an absent field, as a manifest writes it; None: there is none."""
    return _written_default(field.get_default(call_default_factory=False), field)


def _written_default(value: object, field: FieldInfo) -> object:
    if value is PydanticUndefined or value is None or value in ((), {}):
        return None
    if isinstance(value, Model):
        return _whole(value)
    quantity = _first(unwrapped(field.annotation, tuple(field.metadata))[1], Quantity)
    if quantity is not None:
        assert isinstance(value, int | float)
        return quantity.show(value)
    if isinstance(value, tuple):
        return [_written_default(item, field) for item in value]
    return value.value if isinstance(value, enum.Enum) else value


def _whole(value: Model) -> Schema:
    """A default value with all its inner defaults, because the API server checks rules before it fills those in."""
    fields: Schema = {}
    for key, field in type(value).model_fields.items():
        inner = _written_default(getattr(value, key), field)
        if inner is not None:
            fields[field.alias or key] = inner
    return fields


def _object(model: type[Model], *, in_list: bool) -> Schema:
    properties: Schema = {}
    required = []
    for name, field in fields_of(model).items():
        schema = schema_of(field.annotation, field.metadata, in_list=in_list)
        default = default_of(field)
        words = _explain(field, default)
        described: Schema = {"description": words} if words else {}
        is_filled = default is not None and not in_list and (model, name) not in NOT_FILLED
        filled: Schema = {"default": default} if is_filled else {}
        properties[name] = {**described, **schema, **filled}
        if field.is_required():
            required.append(name)
    properties |= {foreign.name: _foreign(foreign) for foreign in FOREIGN.get(model, ())}
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


def _foreign(field: ForeignField) -> Schema:
    """A field of another project, which is refused whatever its value."""
    scalar: Schema = {"x-kubernetes-int-or-string": True}
    mapping: Schema = {"type": "object", "additionalProperties": scalar}
    schemas: dict[ForeignType, Schema] = {
        ForeignType.SCALAR: scalar,
        ForeignType.NUMBER: {"type": "number"},
        ForeignType.BOOLEAN: {"type": "boolean"},
        ForeignType.MAPPING: mapping,
        ForeignType.LIST: {"type": "array", "items": mapping},
        ForeignType.TEXTS: {"type": "array", "items": scalar},
    }
    schema = schemas[field.type]
    return _with_rules(schema, (Rule("false", field.message),))


def _explain(field: FieldInfo, default: object) -> str:
    """The description for `kubectl explain`: the meaning of the field, the form of a quantity, and the default, which
    `kubectl explain` does not show by itself."""
    words = [words_of(field)]
    metadata = unwrapped(field.annotation, tuple(field.metadata))[1]
    if _first(metadata, Quantity) is not None:
        words.append(f"Must be {describe(field.annotation, field.metadata)}.")
    if isinstance(default, str | int | float):
        words.append(f"Default: {str(default).lower() if isinstance(default, bool) else default}.")
    return " ".join(word for word in words if word)


def _list(item: object, items: tuple[object, ...]) -> Schema:
    most = _first(items, MaxLen)
    if most is None:
        raise UnboundedError(f"a list of {item!r} has no most entries")
    key = _first(items, ListKey)
    kind: Schema = {"x-kubernetes-list-type": "atomic"}
    if key is not None:
        kind = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key.name]}
    return {
        "type": "array",
        "maxItems": most.max_length,
        **_least("minItems", items),
        **kind,
        "items": schema_of(item, in_list=True),
    }


def _mapping(key: object, value: object, items: tuple[object, ...]) -> Schema:
    most = _first(items, MaxLen)
    of_key = unwrapped(key, ())[1]
    constraints, allowed = _first(of_key, StringConstraints), _first(of_key, Allowed)
    if most is None or allowed is None or constraints is None or not (constraints.max_length and constraints.pattern):
        raise UnboundedError(f"a mapping of {value!r} has no most entries or no bounds on its keys")
    schema: Schema = {"type": "object", "maxProperties": most.max_length, **_least("minProperties", items)}
    schema["additionalProperties"] = schema_of(value)
    return _with_rules(schema, (keys_match(str(constraints.pattern), constraints.max_length, allowed.text),))


def _least(name: str, items: tuple[object, ...]) -> Schema:
    least = _first(items, MinLen)
    return {} if least is None else {name: least.min_length}


def _number(annotation: object, items: tuple[object, ...]) -> Schema:
    low, high = _first(items, Ge), _first(items, Le)
    if low is None or high is None:
        raise UnboundedError("a number without both bounds")
    bounds: Schema = {"minimum": low.ge, "maximum": high.le}
    if annotation is float:
        return {"type": "number", **bounds}
    assert isinstance(high.le, int)
    return {"type": "integer", "format": "int32" if high.le <= MAX_INT32 else "int64", **bounds}


def _text(items: tuple[object, ...]) -> Schema:
    constraints = _first(items, StringConstraints)
    if constraints is None or constraints.max_length is None:
        raise UnboundedError("text without a greatest length")
    low = constraints.min_length
    schema: Schema = {"type": "string", "maxLength": constraints.max_length, **({"minLength": low} if low else {})}
    allowed = _first(items, Allowed)
    if allowed is not None and allowed.text == ALLOWED:
        return _with_rules(schema, (matches(source_pattern(), f"must be {ALLOWED}"), NO_PARENT, ABSOLUTE))
    if constraints.pattern is None:
        return schema
    if allowed is None:
        return {**schema, "pattern": str(constraints.pattern)}
    return _with_rules(schema, (matches(str(constraints.pattern), f"must be {allowed.text}"),))


def _quantity(quantity: Quantity[float], items: tuple[object, ...]) -> Schema:
    low, high = _first(items, Ge), _first(items, Le)
    least = None if low is None else quantity.show(typing.cast("float", low.ge))
    most = None if high is None else quantity.show(typing.cast("float", high.le))
    message = f"must be {describe(float, items)}"
    if quantity.takes_integers:
        assert least is not None
        assert most is not None
        return _with_rules(_integer_or_text(), (size_rule(quantity.pattern, least, most, message),))
    schema: Schema = {"type": "string", "maxLength": LONGEST_DURATION}
    return _with_rules(schema, (quantity_rule(quantity.name, quantity.pattern, least, most, message),))


def _integer_or_text() -> Schema:
    return {"x-kubernetes-int-or-string": True, "maxLength": LONGEST_SPELLING}


def _with_rules(schema: Schema, rules: tuple[Rule, ...]) -> Schema:
    return {**schema, **({"x-kubernetes-validations": [rule.entry() for rule in rules]} if rules else {})}


Item = typing.TypeVar("Item")


def _first(items: Iterable[object], kind: type[Item]) -> Item | None:
    return next((item for item in items if isinstance(item, kind)), None)
