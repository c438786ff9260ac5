"""Options that a deployment may add to its Pods: environment, flags, volumes, shared memory, huge pages.

There is no embedded PodSpec: each option is bounded here and rendered by Baton, so that none can override Baton's own.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import StringConstraints, model_validator

from baton_control.spec.base_model import Model, broken_rule
from baton_control.spec.quantities import AnnotationValue, Label, MemoryText, ObjectName
from baton_control.spec.reserved_env import is_reserved
from baton_control.spec.resource_quantities import Allowed

RESERVED_VOLUMES: Final = ("keys", "run", "tmp", "model", "shm", "hugepages")

RESERVED_ARGUMENTS: Final = (
    "model", "served-name", "keys", "device", "dtype", "max-context-tokens", "verify", "transport", "quantization",
    "kv-cache-dtype", "min-bandwidth", "kv-cache-bytes", "block-tokens", "max-sequences", "max-step-tokens",
    "chunk-tokens", "max-waiting", "offloaded-layers", "offload-decode", "keep-answers", "threads", "decode-discovery",
    "drain-s", "paced", "template-hash", "listen", "announce", "pair-listen", "metrics-compat", "tasks", "help",
    "tensor-parallel",
)  # fmt: skip
"""Worker flags that Baton sets, or that have fields of their own."""

EnvName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Z_][A-Z0-9_]*$", min_length=1, max_length=64),
    Allowed("1 to 64 capital letters, digits and '_'"),
]
ArgumentName = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z][a-z0-9]*(-[a-z0-9]+)*$", min_length=1, max_length=64),
    Allowed("1 to 64 lower-case letters, digits and single '-', without the dashes in front"),
]
MountPath = Annotated[
    str,
    StringConstraints(pattern=r"^/mnt(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$", max_length=253),
    Allowed("a path below /mnt, such as /mnt/certificates"),
]


class EnvSpec(Model):
    """Environment variable of workers."""

    name: EnvName
    """Name of the variable, from the installation's list. Reserved names are not allowed."""
    value: AnnotationValue
    """Literal value of the variable. Not for secrets: every reader of the object sees it."""

    @model_validator(mode="after")
    def _not_reserved(self) -> EnvSpec:
        if is_reserved(self.name):
            raise broken_rule("name", f"{self.name} is not allowed: it is reserved")
        return self


class ArgumentSpec(Model):
    """Worker flag that has no field of its own."""

    name: ArgumentName
    """Name of the flag without its dashes, from the installation's list. Flags that Baton sets are not allowed."""
    value: AnnotationValue | None = None
    """Value of the flag. Unset: the flag has no value."""

    @model_validator(mode="after")
    def _not_reserved(self) -> ArgumentSpec:
        if self.name in RESERVED_ARGUMENTS:
            raise broken_rule("name", f"{self.name} is not allowed: Baton sets it")
        return self


class VolumeSpec(Model):
    """Additional volume of workers."""

    name: Label
    """Name of the volume in the Pod, unique within the pool."""
    mount_path: MountPath
    """Path at which the volume is mounted, unique within the pool."""
    claim_name: ObjectName | None = None
    """PersistentVolumeClaim in the same namespace. Exactly one of this and `configMapName` is set."""
    config_map_name: ObjectName | None = None
    """ConfigMap in the same namespace, mounted read-only."""
    read_only: bool = True
    """Mounts the claim read-only."""

    @model_validator(mode="after")
    def _has_one_source(self) -> VolumeSpec:
        if (self.claim_name is None) == (self.config_map_name is None):
            raise broken_rule("claimName", "must be given, or configMapName, and not both")
        if self.config_map_name is not None and not self.read_only:
            raise broken_rule("readOnly", "false is not allowed: must be true for a ConfigMap")
        if self.name in RESERVED_VOLUMES:
            raise broken_rule("name", f"{self.name} is not allowed: it is reserved")
        return self


class HugepagesSpec(Model):
    """Huge pages, mounted at /dev/hugepages."""

    page_size: Literal["2Mi", "1Gi"] = "2Mi"
    """Size of one page."""
    size: MemoryText
    """Request and limit for the pages of one worker, a multiple of `pageSize`."""
