"""What Baton reports on an LLMDeployment and its pools: the shape of `status`, bounded like everything else.

Only the operator writes it. A count that is not known is absent, never zero. How a status is computed from what was
observed is not here.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from baton_control.spec.api import MAX_REPLICAS
from baton_control.spec.base_model import Model

SIZING_MEMORY_BYTES = 4096


class ConditionType(enum.StrEnum):
    """Conditions of an LLMDeployment."""

    AVAILABLE = "Available"
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"
    SLO_MET = "SLOMet"
    TRANSPORT_VERIFIED = "TransportVerified"
    SCALING_LIMITED = "ScalingLimited"


class PoolConditionType(enum.StrEnum):
    """Conditions of an LLMPool."""

    SIZED = "Sized"
    """True; its reason is the mode of `spec.autoscaling` that was followed last."""


@dataclass(frozen=True, slots=True)
class ListKey:
    """Annotates a list of mappings with the field that tells its entries apart, for server-side apply."""

    name: str


Count = Annotated[int, Field(ge=0, le=MAX_REPLICAS * 4)]
Text = Annotated[str, StringConstraints(max_length=256)]
LongText = Annotated[str, StringConstraints(max_length=1024)]
Time = Annotated[
    str,
    StringConstraints(
        pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z$", max_length=32
    ),
]
Reason = Annotated[str, StringConstraints(pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$", max_length=128)]
Generation = Annotated[int, Field(ge=0, le=(1 << 53))]


class Condition(Model):
    """As metav1.Condition."""

    type: Annotated[str, StringConstraints(pattern=r"^[A-Za-z]([A-Za-z0-9]*)$", max_length=64)]
    status: Literal["True", "False", "Unknown"]
    reason: Reason
    message: LongText
    last_transition_time: Time
    observed_generation: Generation | None = None


Conditions = Annotated[tuple[Condition, ...], Field(max_length=16), ListKey("type")]


class RevisionStatus(Model):
    """The workers of one template."""

    revision: Text
    workers: Count
    ready: Count | None = None
    routable: Count | None = None


class PoolStatus(Model):
    desired: Count | None = None
    ready: Count | None = None
    routable: Count | None = None
    """Workers that the gateways have linked and that fit a partner."""
    summary: Text | None = None
    """Ready and desired as the column shows them: 3/3."""
    revisions: Annotated[tuple[RevisionStatus, ...], Field(max_length=16), ListKey("revision")] = ()


class SloStatus(Model):
    """Measured against target, rounded: p95 412ms/500ms."""

    ttft: Text | None = None
    tpot: Text | None = None


class LaneStatus(Model):
    lane: Text | None = None
    """How KV travels now."""
    bandwidth: Text | None = None


class ScalingDecision(Model):
    time: Time
    pool: Literal["prefill", "decode"]
    from_: Annotated[Count, Field(alias="from")]
    to: Count
    reason: Text
    inputs: LongText | None = None


class DeploymentStatus(Model):
    observed_generation: Generation | None = None
    conditions: Conditions = ()
    prefill: PoolStatus | None = None
    decode: PoolStatus | None = None
    slo: SloStatus | None = None
    kv_transfer: LaneStatus | None = None
    last_scaling: ScalingDecision | None = None
    revision: Text | None = None
    """The revision that is being rolled out or serves."""
    sizing_memory: Annotated[str, StringConstraints(max_length=SIZING_MEMORY_BYTES)] | None = None
    """What sizing remembers; safe to lose."""


class PoolFacadeStatus(Model):
    observed_generation: Generation | None = None
    replicas: Count | None = None
    """Workers that exist, for `/scale`."""
    selector: LongText | None = None
    """Selects the pool's Pods of all revisions, for `/scale`."""
    effective: Count | None = None
    """`spec.replicas` within the bounds of the LLMDeployment."""
    conditions: Conditions = ()
