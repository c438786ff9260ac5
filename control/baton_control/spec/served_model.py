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


class AccessMode(enum.StrEnum):
    READ_WRITE_MANY = "ReadWriteMany"
    READ_WRITE_ONCE = "ReadWriteOnce"
    READ_ONLY_MANY = "ReadOnlyMany"


class CacheType(enum.StrEnum):
    """Copies of a fetched model."""

    SHARED = "Shared"
    PER_WORKER = "PerWorker"
    IMAGE_VOLUME = "ImageVolume"


class ModelTask(enum.StrEnum):
    """A kind of work that the model is served for."""

    GENERATE = "Generate"
    EMBED = "Embed"
    RERANK = "Rerank"


class CacheSpec(Model):
    """Volume claim for fetched models."""

    type: Annotated[CacheType, Field(strict=False)] = CacheType.SHARED
    """Copies. `Shared`: one claim. `PerWorker`: a clone for each worker. `ImageVolume`: no claim, an oci:// image."""
    size: MemoryText = "100Gi"
    """Size of the volume claim, which keeps every fetched source. It can only grow."""
    storage_class_name: ObjectName | None = None
    """StorageClass of the claim, which has to offer `accessMode`. Unset: the cluster's default."""
    access_mode: Annotated[AccessMode, Field(strict=False)] = AccessMode.READ_WRITE_MANY
    """Mode of workers' volumes. `ReadWriteOnce`: all workers are on one node. `ReadOnlyMany`: they read a clone."""
    claim_name: ObjectName | None = None
    """Existing claim, also of several deployments; `size` is ignored. Unset: a claim of its own is made."""

    @model_validator(mode="after")
    def _fits_its_type(self) -> CacheSpec:
        if self.claim_name is not None and self.storage_class_name is not None:
            raise broken_rule("storageClassName", "must be absent while claimName is given, which has a class")
        if self.claim_name is not None and self.type is CacheType.IMAGE_VOLUME:
            raise broken_rule("claimName", "must be absent while type is ImageVolume, which needs no claim")
        if self.access_mode is AccessMode.READ_ONLY_MANY and self.type is CacheType.PER_WORKER:
            raise broken_rule("accessMode", "must be ReadWriteOnce or ReadWriteMany while type is PerWorker")
        return self


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


class CredentialsSpec(Model):
    """Credentials for fetching the model."""

    secret_name: ObjectName
    """Secret in the same namespace."""


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
    tasks: Annotated[
        tuple[Annotated[ModelTask, Field(strict=False)], ...], Field(min_length=1, max_length=3, strict=False)
    ] = (ModelTask.GENERATE,)
    """Work of the workers. Without `Generate` nothing is decoded, and `decode` must be absent."""
    tool_format: ToolFormat = "auto"
    """Format of the model's tool calls (docs/tools.md). `auto`: from its chat template. `none`: calls stay text."""
    reasoning_format: ReasoningFormat = "auto"
    """Format of the model's reasoning. `auto`: from its chat template. `none`: it stays text. `harmony` sets both."""
    cache: CacheSpec = CacheSpec()
    fetch: FetchSpec = FetchSpec()
    credentials_secret: ObjectName | None = None
    """Secret in the same namespace with credentials for fetching the model. Unset: no credentials are sent."""
    credentials: CredentialsSpec | None = None
    """The same as an object, as other Secrets are named. Only without `credentialsSecret`."""

    @model_validator(mode="after")
    def _names_differ(self) -> ModelSpec:
        if len({self.served_name, *self.aliases}) <= len(self.aliases):
            raise broken_rule("aliases", "not allowed: names must differ from each other and from servedName")
        if len(set(self.tasks)) < len(self.tasks):
            raise broken_rule("tasks", "not allowed: each task at most once")
        if not are_compatible(self.tool_format, self.reasoning_format):
            raise broken_rule("reasoningFormat", "not allowed: harmony is toolFormat and reasoningFormat at once")
        if self.cache.type is CacheType.IMAGE_VOLUME and not self.source.startswith("oci://"):
            raise broken_rule("cache.type", "must be Shared or PerWorker: an ImageVolume needs an oci:// source")
        return self

    @property
    def generates(self) -> bool:
        """True if prompts are answered, so that there is a decode pool."""
        return ModelTask.GENERATE in self.tasks

    @model_validator(mode="after")
    def _credentials_in_normal_form(self) -> ModelSpec:
        """The same model with its credentials as `credentialsSecret`."""
        if self.credentials is None:
            return self
        if self.credentials_secret is not None:
            raise broken_rule("credentials", "not allowed: must be absent while credentialsSecret is given")
        return self.model_copy(update={"credentials_secret": self.credentials.secret_name, "credentials": None})
