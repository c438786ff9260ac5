"""The `status` of an LLMDeployment and of its pools: types with bounds, like everything in the API.

Only the operator writes it. An unknown count is absent, never zero. `passes/deployment_status` computes it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from baton_control.spec.base_model import Model
from baton_control.spec.pools import MAX_REPLICAS
from baton_wire.tenant_usage import MAX_TOKENS

SIZING_MEMORY_BYTES = 4096


class ConditionType(enum.StrEnum):
    """Conditions of an LLMDeployment."""

    READY = "Ready"
    """A request would be answered; where not, the reason is the cause. With the next two, kstatus reads it."""
    RECONCILING = "Reconciling"
    """The wanted state is not reached yet, and waiting is enough."""
    STALLED = "Stalled"
    """The wanted state is not reached until somebody acts."""
    AVAILABLE = "Available"
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"
    SLO_MET = "SLOMet"
    TRANSPORT_VERIFIED = "TransportVerified"
    SCALING_LIMITED = "ScalingLimited"


class Truth(enum.StrEnum):
    """The status of a condition; what is not known is `Unknown`, never `False`."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class TenantConditionType(enum.StrEnum):
    """Conditions of an LLMTenant."""

    READY = "Ready"
    """True: gateways let the tenant in. False: its message names the field that is refused."""


class PoolConditionType(enum.StrEnum):
    """Conditions of an LLMPool."""

    SIZED = "Sized"
    """True; its reason is the mode of `spec.autoscaling` that was followed last."""


@dataclass(frozen=True, slots=True)
class ListKey:
    """Annotates a list of mappings with the field that identifies its entries, for server-side apply."""

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
    """One aspect of the state, as metav1.Condition."""

    type: Annotated[str, StringConstraints(pattern=r"^[A-Za-z]([A-Za-z0-9]*)$", max_length=64)]
    """The aspect that it is about."""
    status: Literal["True", "False", "Unknown"]
    """True, False or Unknown."""
    reason: Reason
    """Why, in one word for programs."""
    message: LongText
    """Why, in words for people."""
    last_transition_time: Time
    """When `status` changed last."""
    observed_generation: Generation | None = None
    """`metadata.generation` that it is based on."""


Conditions = Annotated[tuple[Condition, ...], Field(max_length=16), ListKey("type")]


class RevisionStatus(Model):
    """The workers of one template."""

    revision: Text
    """Pair fingerprint and template hash."""
    workers: Count
    """Workers that exist."""
    ready: Count | None = None
    """Workers whose Pod is Ready; absent: unknown."""
    routable: Count | None = None
    """Workers that the gateways have linked and that fit a partner; absent: unknown."""


class PoolStatus(Model):
    """The state of one pool."""

    desired: Count | None = None
    """Workers that the pool should have now."""
    ready: Count | None = None
    """Workers whose Pod is Ready; absent: unknown."""
    routable: Count | None = None
    """Workers that the gateways have linked and that fit a partner; absent: unknown."""
    summary: Text | None = None
    """Ready and desired as the column shows them: 3/3."""
    accelerator: Text | None = None
    """Type of accelerator that the pool should have, among the alternatives; absent: there is no choice."""
    choice: LongText | None = None
    """Why, with the workers and the cost of each type; absent: types were not compared yet."""
    revisions: Annotated[tuple[RevisionStatus, ...], Field(max_length=16), ListKey("revision")] = ()
    """The pool's workers by revision."""


class SloStatus(Model):
    """Measured against target, rounded: p95 412ms/500ms."""

    ttft: Text | None = None
    """Time to the first token; absent: no requests or no reports."""
    tpot: Text | None = None
    """Time per output token after the first; absent: no requests or no reports."""


class LaneStatus(Model):
    """How KV travels between the pools, as measured."""

    lane: Text | None = None
    """How KV travels now."""
    bandwidth: Text | None = None
    """Measured rate of the slowest link."""


class ScalingDecision(Model):
    """The last change of a pool's size."""

    time: Time
    """When it was decided."""
    pool: Literal["prefill", "decode"]
    """The pool that changed."""
    from_: Annotated[Count, Field(alias="from")]
    """Workers wanted before."""
    to: Count
    """Workers wanted since then."""
    reason: Text
    """Why, in words."""
    inputs: LongText | None = None
    """The figures that led to it."""


class DeploymentStatus(Model):
    """The observed state; only the operator writes it."""

    observed_generation: Generation | None = None
    """`metadata.generation` that the status is about."""
    summary: Text | None = None
    """The worst present state, as the column shows it: Serving, FetchingModel, MissingSecret."""
    message: LongText | None = None
    """The same in words."""
    conditions: Conditions = ()
    """Ready, Reconciling and Stalled as kstatus reads them; Available, Progressing, Degraded, SLOMet, TransportVerified
    and ScalingLimited."""
    prefill: PoolStatus | None = None
    """The pool that computes prompts."""
    decode: PoolStatus | None = None
    """The pool that generates."""
    slo: SloStatus | None = None
    kv_transfer: LaneStatus | None = None
    last_scaling: ScalingDecision | None = None
    scaling_decisions: Annotated[tuple[ScalingDecision, ...], Field(max_length=20)] = ()
    """The last changes of a pool's size, the newest last."""
    revision: Text | None = None
    """The revision that is being rolled out or serves."""
    sizing_memory: Annotated[str, StringConstraints(max_length=SIZING_MEMORY_BYTES)] | None = None
    """Memory of sizing; safe to lose."""


class TenantMonth(Model):
    """Tokens of the month."""

    month: Annotated[str, StringConstraints(max_length=7)]
    """Month in UTC, such as `2026-11`."""
    tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)]
    """Tokens of prompts and answers so far, within 1 % of the limit."""


class TenantStatus(Model):
    """The observed state of a tenant; only the operator writes it."""

    observed_generation: Generation | None = None
    """`metadata.generation` that the status is about."""
    conditions: Conditions = ()
    """Ready: gateways let the tenant in."""
    usage: TenantMonth | None = None
    """Use of `spec.limits.tokensPerMonth`; absent without that limit."""


class PoolFacadeStatus(Model):
    """The observed state of the pool; only the operator writes it."""

    observed_generation: Generation | None = None
    """`metadata.generation` that the status is about."""
    replicas: Count | None = None
    """Workers that exist, for `/scale`."""
    selector: LongText | None = None
    """Selects the pool's Pods of all revisions, for `/scale`."""
    effective: Count | None = None
    """`spec.replicas` within the bounds of the LLMDeployment."""
    conditions: Conditions = ()
    """Sized: its reason is the mode that sizes the pool."""
