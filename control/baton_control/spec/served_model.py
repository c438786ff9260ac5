"""The fields of `spec.model`: which model, as what it is served, and how it comes to the workers."""

from __future__ import annotations

import enum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from baton_control.spec.base_model import Model, broken_rule
from baton_control.spec.model_source import SourceText
from baton_control.spec.placing import NodesSpec, ResourceSpec
from baton_control.spec.quantities import AnnotationValue, MemoryText, ObjectName, QualifiedName, ServedName
from baton_control.spec.reserved_keys import RESERVED_ANNOTATIONS, refuse_reserved
from baton_wire.rules.answer_formats import ReasoningFormat, ToolFormat, are_compatible


class Dtype(enum.StrEnum):
    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class CacheSpec(Model):
    """Where fetched weights are kept on a cluster."""

    size: MemoryText = "100Gi"
    """Size of the volume claim, which keeps every source that was fetched into it. It can only grow."""
    storage_class_name: ObjectName | None = None
    """StorageClass of the claim, one that many nodes can read at once; unset: the cluster's default."""


class FetchSpec(Model):
    """The Job that fetches a remote model."""

    resources: ResourceSpec = ResourceSpec()
    """What the Job asks for; unset: 250m and 256Mi, with a limit of 2Gi."""
    placement: NodesSpec = NodesSpec()
    """Onto which nodes the Job goes."""
    service_account_annotations: Annotated[dict[QualifiedName, AnnotationValue], Field(max_length=8)] = {}  # noqa: RUF012 - pydantic copies it
    """Annotations of the Job's ServiceAccount, such as a cloud identity; the installation lists which."""

    @model_validator(mode="after")
    def _not_reserved(self) -> FetchSpec:
        refuse_reserved("serviceAccountAnnotations", self.service_account_annotations, RESERVED_ANNOTATIONS)
        return self


class ModelSpec(Model):
    """Which model is served, and as what."""

    source: SourceText
    """Where the weights are. Remote sources are fetched once, pinned and verified."""
    served_name: ServedName
    """What clients write as `model`."""
    aliases: Annotated[tuple[ServedName, ...], Field(max_length=16, strict=False)] = ()
    """Other names that clients may write as `model`; only the gateway knows them. None: only `servedName`."""
    max_context_tokens: Annotated[int, Field(ge=16, le=1 << 20)]
    """Longest prompt and answer together, in tokens."""
    dtype: Annotated[Dtype, Field(strict=False)] = Dtype.AUTO
    """Of weights and arithmetic; `auto`: what the model's config.json says, and float32 on CPUs."""
    quantization: Literal["auto", "none"] = "auto"
    """`auto`: as the checkpoint's quantization_config says. `none`: quantised checkpoints are refused."""
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"
    """`auto`: as `dtype`. `fp8` (e4m3, with scales) halves KV of 16-bit models and needs accelerators."""
    generation_defaults: bool = True
    """Whether sampling that a request leaves open follows the model's generation_config.json; otherwise the API's."""
    tool_format: ToolFormat = "auto"
    """How the model writes calls of tools (docs/tools.md). `auto`: its chat template tells. `none`: none are read."""
    reasoning_format: ReasoningFormat = "auto"
    """How it writes thoughts. `auto`: its chat template tells. `none`: nothing is split off. `harmony` names both."""
    cache: CacheSpec = CacheSpec()
    fetch: FetchSpec = FetchSpec()
    credentials_secret: ObjectName | None = None
    """Secret in the same namespace with credentials for fetching the model; unset: none are sent."""

    @model_validator(mode="after")
    def _names_differ(self) -> ModelSpec:
        if len({self.served_name, *self.aliases}) <= len(self.aliases):
            raise broken_rule("aliases", "not allowed: names must differ from each other and from servedName")
        if not are_compatible(self.tool_format, self.reasoning_format):
            raise broken_rule("reasoningFormat", "not allowed: harmony is toolFormat and reasoningFormat at once")
        return self
