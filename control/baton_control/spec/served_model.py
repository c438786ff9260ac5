"""The fields of `spec.model`: the model's source, its names, its formats, and the cache that it is fetched into."""

from __future__ import annotations

import enum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from baton_control.spec.base_model import Model, broken_rule
from baton_control.spec.model_source import SourceText
from baton_control.spec.placing import NodesSpec
from baton_control.spec.quantities import AnnotationValue, MemoryText, ObjectName, QualifiedName, ServedName
from baton_control.spec.reserved_keys import RESERVED_ANNOTATIONS, refuse_reserved
from baton_control.spec.resources import ResourceSpec
from baton_wire.rules.answer_formats import ReasoningFormat, ToolFormat, are_compatible


class Dtype(enum.StrEnum):
    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class CacheSpec(Model):
    """Volume claim for fetched models."""

    size: MemoryText = "100Gi"
    """Size of the volume claim, which keeps every fetched source. It can only grow."""
    storage_class_name: ObjectName | None = None
    """StorageClass of the claim, readable by many nodes at once. Unset: the cluster's default."""


class FetchSpec(Model):
    """Job that fetches a remote model."""

    resources: ResourceSpec = ResourceSpec()
    """Resource requests of the Job. Unset: 250m and 256Mi, with a memory limit of 2Gi."""
    placement: NodesSpec = NodesSpec()
    """Nodes that the Job may run on."""
    service_account_annotations: Annotated[dict[QualifiedName, AnnotationValue], Field(max_length=8)] = {}  # noqa: RUF012 - pydantic copies it
    """Annotations of the Job's ServiceAccount, for a cloud identity for example, from the installation's list."""

    @model_validator(mode="after")
    def _not_reserved(self) -> FetchSpec:
        refuse_reserved("serviceAccountAnnotations", self.service_account_annotations, RESERVED_ANNOTATIONS)
        return self


class ModelSpec(Model):
    """Served model."""

    source: SourceText
    """URL of the model. Remote models are pinned, fetched once and verified."""
    served_name: ServedName
    """Model name in requests (`model`)."""
    aliases: Annotated[tuple[ServedName, ...], Field(max_length=16, strict=False)] = ()
    """Further model names in requests, which the gateway maps to `servedName`. Empty: only `servedName`."""
    max_context_tokens: Annotated[int, Field(ge=16, le=1 << 20)]
    """Maximum number of tokens of prompt and answer together."""
    dtype: Annotated[Dtype, Field(strict=False)] = Dtype.AUTO
    """Type of weights and arithmetic. `auto`: the type in the model's config.json, on CPUs float32."""
    quantization: Literal["auto", "none"] = "auto"
    """Quantised weights. `auto`: the format in the checkpoint's quantization_config. `none`: they are refused."""
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"
    """Type of the KV cache. `auto`: `dtype`. `fp8` (e4m3, with scales) halves 16-bit KV and needs accelerators."""
    generation_defaults: bool = True
    """Takes sampling defaults from the model's generation_config.json. False: the API's defaults."""
    tool_format: ToolFormat = "auto"
    """Format of the model's tool calls (docs/tools.md). `auto`: from its chat template. `none`: calls stay text."""
    reasoning_format: ReasoningFormat = "auto"
    """Format of the model's reasoning. `auto`: from its chat template. `none`: it stays text. `harmony` sets both."""
    cache: CacheSpec = CacheSpec()
    fetch: FetchSpec = FetchSpec()
    credentials_secret: ObjectName | None = None
    """Secret in the same namespace with credentials for fetching the model. Unset: no credentials are sent."""

    @model_validator(mode="after")
    def _names_differ(self) -> ModelSpec:
        if len({self.served_name, *self.aliases}) <= len(self.aliases):
            raise broken_rule("aliases", "not allowed: names must differ from each other and from servedName")
        if not are_compatible(self.tool_format, self.reasoning_format):
            raise broken_rule("reasoningFormat", "not allowed: harmony is toolFormat and reasoningFormat at once")
        return self
