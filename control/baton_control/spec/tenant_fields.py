"""The LLMTenant: one team that uses the gateways of its namespace, with its keys, its weight and its limits.

A tenant is no part of a deployment: every LLMDeployment of the namespace with `gateway.tenants` lets it in.
"""

from __future__ import annotations

import datetime
import enum
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from baton_control.spec.base_model import Model, broken_rule
from baton_control.spec.quantities import AnnotationValue, Label, LabelValue, QualifiedName, ServedName
from baton_control.spec.resource_quantities import Allowed
from baton_wire.messages.values import MAX_CONTEXT_TOKENS
from baton_wire.tenant_table import (
    MAX_CONCURRENT,
    MAX_KEYS,
    MAX_MODELS,
    MAX_PER_MINUTE,
    MAX_PER_MONTH,
    MAX_WEIGHT,
    PriorityClass,
)

TENANT_KIND = "LLMTenant"
DIGEST_PATTERN = "^[0-9a-f]{64}$"
TIME_PATTERN = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$"
Digest = Annotated[
    str,
    StringConstraints(pattern=DIGEST_PATTERN, min_length=64, max_length=64),
    Allowed("the SHA-256 of a key, 64 hexadecimal digits in lower case, as `baton key` prints it; never the key"),
]


def _is_time(text: str) -> str:
    seconds_of(text)
    return text


Time = Annotated[
    str,
    StringConstraints(pattern=TIME_PATTERN, min_length=20, max_length=20),
    AfterValidator(_is_time),
    Allowed("a time in UTC such as 2027-01-31T00:00:00Z"),
]
PerMinute = Annotated[int, Field(ge=1, le=MAX_PER_MINUTE)]


def seconds_of(time: str) -> float:
    """A time as seconds since 1970. Raises ValueError for a date that does not exist."""
    if re.fullmatch(TIME_PATTERN, time) is None:
        raise ValueError("not a time in UTC")
    return datetime.datetime.fromisoformat(time).timestamp()


class PromptCache(enum.StrEnum):
    OWN = "Own"
    SHARED = "Shared"


class TenantKeySpec(Model):
    """A key of the tenant, by its digest."""

    sha256: Digest
    """SHA-256 of the key, as `baton key` prints it. Never the key itself."""
    expires: Time | None = None
    """Time in UTC from which the key is refused. Unset: never."""


class TenantLimitSpec(Model):
    """Limits of the tenant, over all gateways and processes of a deployment together. Unset: none."""

    requests_per_minute: PerMinute | None = None
    """Requests a minute. A whole minute's may come at once; more get 429."""
    input_tokens_per_minute: PerMinute | None = None
    """Tokens of prompts a minute, cached ones included. More get 429."""
    output_tokens_per_minute: PerMinute | None = None
    """Generated tokens a minute. More get 429."""
    max_concurrent: Annotated[int, Field(ge=1, le=MAX_CONCURRENT)] | None = None
    """Sequences that run at the same time. Further ones wait for the tenant's own."""
    max_context_tokens: Annotated[int, Field(ge=1, le=MAX_CONTEXT_TOKENS)] | None = None
    """Longest prompt and answer together. Longer requests get 400."""
    tokens_per_month: Annotated[int, Field(ge=1, le=MAX_PER_MONTH)] | None = None
    """Tokens of prompts and answers in a calendar month (UTC), over all deployments of the namespace. More get 429."""


class TenantSpec(Model):
    """The keys that let the tenant in, and what it may have."""

    api_keys: Annotated[tuple[TenantKeySpec, ...], Field(max_length=MAX_KEYS, strict=False)] = ()
    """Keys of the tenant, as digests. Two make a rotation without an interruption. Empty: none is let in by a key."""
    weight: Annotated[int, Field(ge=1, le=MAX_WEIGHT)] = 1
    """Share of the workers under load, relative to other tenants."""
    models: Annotated[tuple[ServedName, ...], Field(max_length=MAX_MODELS, strict=False)] = ()
    """Served names of the models that it may ask. Empty: all."""
    prompt_cache: Annotated[PromptCache, Field(strict=False)] = PromptCache.OWN
    """`Shared`: cached prefixes are shared with other such tenants, which can then learn of equal prompts."""
    priorities: Annotated[
        tuple[Annotated[PriorityClass, Field(strict=False)], ...], Field(max_length=len(PriorityClass), strict=False)
    ] = ()
    """Classes that its requests may ask for. Empty: all. They order the tenant's own requests, not those of others."""
    limits: TenantLimitSpec = TenantLimitSpec()

    @model_validator(mode="after")
    def _differ(self) -> TenantSpec:
        for field, values in (
            ("apiKeys", [key.sha256 for key in self.api_keys]),
            ("models", list(self.models)),
            ("priorities", list(self.priorities)),
        ):
            if len(set(values)) < len(values):
                raise broken_rule(field, "not allowed: entries must differ")
        return self


class TenantMetadata(Model):
    """Standard object metadata, as far as a manifest may set it."""

    name: Label
    """Name of the tenant, in logs and in usage."""
    namespace: Label = "default"
    """Namespace whose gateways let the tenant in."""
    labels: Annotated[dict[QualifiedName, LabelValue], Field(max_length=64)] = {}  # noqa: RUF012 - pydantic copies it
    """Labels of the LLMTenant."""
    annotations: Annotated[dict[QualifiedName, AnnotationValue], Field(max_length=64)] = {}  # noqa: RUF012 - pydantic copies it
    """Annotations of the LLMTenant."""


class LLMTenant(Model):
    """A team that uses the gateways of its namespace."""

    api_version: Annotated[Literal["baton.dev/v1alpha1"], Allowed("'baton.dev/v1alpha1'")]
    """Version of the API schema of this object."""
    kind: Annotated[Literal["LLMTenant"], Allowed("'LLMTenant'")]
    """Kind of this object."""
    metadata: TenantMetadata
    spec: TenantSpec
