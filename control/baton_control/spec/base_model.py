"""The base of all API types."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError


def broken_rule(field: str, message: str) -> PydanticCustomError:
    """The error for a broken rule over several fields; `field` is relative to the model that checks it."""
    return PydanticCustomError("rule", "{message}", {"field": field, "message": message})


class Model(BaseModel):
    """Base of the API types: immutable, camelCase in manifests, no coercion, no unknown fields."""

    model_config = ConfigDict(
        use_attribute_docstrings=True,
        frozen=True,
        strict=True,
        extra="forbid",
        alias_generator=to_camel,
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )
