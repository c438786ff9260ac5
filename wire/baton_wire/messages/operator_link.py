"""Messages between a gateway process and the process that sizes the pools: the operator, or the local runtime.

One WebSocket per gateway process, dialled by the gateway. Up: GatewayHello (first), ModelConfigFile, Summary every few
seconds, Wake at once, LimitReport, MonthReport, TenantConflicts, Heartbeat. Down: Standby, FlipOrder, TenantTable,
LimitOrder, MonthTotals, HistoryDocument, Heartbeat. Nothing that serves a request waits for this link.
"""

from __future__ import annotations

import enum
from typing import Annotated

from msgspec import Meta

from baton_wire.liveness import LivenessConfig
from baton_wire.messages.measures import ArrivalCounts, Backlog, ContextCounts, Served, WorkerMeasures
from baton_wire.messages.values import Address, Count, Epoch, Message, NestedValue, Role, Seconds, check_worker

SILENCE = LivenessConfig(suspect_s=2.0, dead_s=4.0, watched_s=1.0)
"""For both ends, which send at least a heartbeat every two seconds. A flipped length of a frame shows as silence alone,
and such a link must end within 5 s, even where this process stands still for 3 s of them."""
CLOSE_S = 0.2
"""For the peer's farewell. After an altered frame it may never be read, and the library would wait for 10 s."""
MAX_WORKERS = 1_024
"""Workers that one summary describes."""

MAX_CONFIG_BYTES = 1 << 16
MAX_UP_BYTES = 4 << 20
"""Longest frame of a gateway: a summary of `MAX_WORKERS` workers with all their step times."""
MAX_SHARD_BYTES = 512 << 10
MAX_DOWN_BYTES = MAX_SHARD_BYTES + 4_096
MAX_HISTORY_BYTES = 48 << 10
MAX_LIMITS = 1_000
"""Limits of tenants in one message; more come in the next one."""


class LimitMeasure(enum.StrEnum):
    """The measure that is limited, named after the field of an LLMTenant."""

    REQUESTS = "requestsPerMinute"
    INPUT = "inputTokensPerMinute"
    OUTPUT = "outputTokensPerMinute"
    CONCURRENT = "maxConcurrent"


Month = Annotated[int, Meta(ge=12 * 1970, lt=12 * 10_000)]
"""A calendar month in UTC: 12 times the year, and the months of it that have passed."""
TenantName = Annotated[str, Meta(min_length=1, max_length=63)]
Amount = Annotated[float, Meta(ge=0, le=1e15)]
ConfigHash = Annotated[str, Meta(max_length=64)]


class GatewayHello(Message, frozen=True, tag=1):
    """Introduces a gateway process. Sent once, right after the handshake."""

    gateway: Annotated[str, Meta(min_length=1, max_length=253)]
    """Name of the machine or Pod; processes of one gateway share it."""
    processes: Annotated[int, Meta(ge=1, le=256)]
    """How many processes this gateway has, each with a link of its own."""


class Summary(Message, frozen=True, tag=2):
    """Everything since the last summary that was sent, also over a time without a link."""

    number: Count
    at_s: Annotated[float, Meta(ge=0, le=1e11)]
    """Wall clock of the gateway."""
    seconds: Seconds
    """Seconds that the counts cover."""
    arrived: ArrivalCounts
    served: Served
    backlog: Backlog
    workers: Annotated[tuple[WorkerMeasures, ...], Meta(max_length=MAX_WORKERS)]
    workers_left_out: Count
    config_hash: ConfigHash
    """Hash of the configuration that is applied."""
    contexts: ContextCounts | None = None
    """None: the gateway does not count them."""


class Wake(Message, frozen=True, tag=3):
    """Requests wait and there is no pair of workers at all."""

    parked: Count


class Heartbeat(Message, frozen=True, tag=4):
    """Sent by both sides when nothing else was."""


class ModelConfigFile(Message, frozen=True, tag=5):
    """`config.json` of the model that is served, sent when the first worker of a revision was linked."""

    content: Annotated[bytes, Meta(min_length=2, max_length=MAX_CONFIG_BYTES)]


class LimitUse(NestedValue, frozen=True):
    """Use of one limit of a tenant by one process since its last report."""

    tenant: TenantName
    measure: LimitMeasure
    per_minute: Amount
    """The limit; for `CONCURRENT` the number of sequences."""
    wanted: Amount
    """Amount that was spent or refused; for `CONCURRENT` the sequences that run or wait."""
    level: Annotated[float, Meta(ge=-1e15, le=1e15)]
    """Amount that is left in this process; for `CONCURRENT` the sequences that run."""


class LimitReport(Message, frozen=True, tag=6):
    """The use of tenants' limits, every second while there is some."""

    order: Count
    """Number of the last LimitOrder on this link that was carried out; 0: none."""
    uses: Annotated[tuple[LimitUse, ...], Meta(max_length=MAX_LIMITS)]


class MonthUse(NestedValue, frozen=True):
    """The use of one tenant's tokens of the month by one process."""

    tenant: TenantName
    spent: Amount
    """Tokens of requests that ended since the last report that was acknowledged."""
    open: Amount
    """Tokens that requests at work are expected to take."""
    known: Amount
    """Tokens of all processes that this end was last given; the other end may have lost them in a restart."""


class MonthReport(Message, frozen=True, tag=7):
    """The use of tokens of the month. One is sent at a time: the next one follows after a MonthTotals that
    acknowledges it."""

    number: Annotated[int, Meta(ge=1, le=1 << 53)]
    month: Month
    """The month that the tokens were spent in."""
    uses: Annotated[tuple[MonthUse, ...], Meta(max_length=MAX_LIMITS)]


class TenantConflict(NestedValue, frozen=True):
    """An LLMTenant that this gateway does not let in, because a key file has the same."""

    tenant: TenantName
    field: Annotated[str, Meta(min_length=1, max_length=64)]
    """`metadata.name`, or the path of a key."""


class TenantConflicts(Message, frozen=True, tag=8):
    """All conflicts of this gateway process, sent when they change. Those above the bound are left out."""

    conflicts: Annotated[tuple[TenantConflict, ...], Meta(max_length=MAX_LIMITS)]


class LimitShare(NestedValue, frozen=True):
    """One process's part of one limit from now on."""

    tenant: TenantName
    measure: LimitMeasure
    share: Annotated[float, Meta(ge=0, le=1e6)]
    """A part from 0 to 1; for `CONCURRENT` a number of sequences."""
    moved: Annotated[float, Meta(ge=-1e15, le=1e15)]
    """Tokens that come from other processes; negative: they go there."""


class Standby(Message, frozen=True, tag=16):
    """This end does not size pools now: dial the one that does. The link is closed after it."""

    holder: Address | None
    """None: not known; try again later."""


class FlipOrder(Message, frozen=True, tag=17):
    """Have this worker change its role (`gateway_link.Flip`). Repeated until a summary says that it was carried out;
    a gateway that has not linked the worker ignores it.
    """

    worker: Epoch
    number: Annotated[int, Meta(ge=1, le=1 << 40)]
    """Higher than that of every earlier order for this worker."""
    role: Role

    def __post_init__(self) -> None:
        check_worker(self.role)


class TenantTable(Message, frozen=True, tag=18):
    """A shard of the compiled table of LLMTenants, sent when a link begins and when the shard changes."""

    content: Annotated[bytes, Meta(min_length=2, max_length=MAX_SHARD_BYTES)]
    """As `baton_wire.tenant_table` encodes it."""


class LimitOrder(Message, frozen=True, tag=19):
    """Parts of limits. A process without an order goes on with the parts that it has."""

    number: Count
    processes: Annotated[int, Meta(ge=1, le=1 << 16)]
    """Gateway processes that are linked: each has an equal part of every limit that is not named."""
    shares: Annotated[tuple[LimitShare, ...], Meta(max_length=MAX_LIMITS)]


class HistoryDocument(Message, frozen=True, tag=20):
    """The deployment's history, for the gateway's page. Sent when a link begins and after a change."""

    content: Annotated[bytes, Meta(min_length=2, max_length=MAX_HISTORY_BYTES)]
    """As `baton_wire.deployment_history` encodes it."""


class MonthTotal(NestedValue, frozen=True):
    """The use by all processes of one tenant's tokens of the month."""

    tenant: TenantName
    used: Amount
    open: Amount
    """Tokens that requests at work at other processes are expected to take."""


class MonthTotals(Message, frozen=True, tag=21):
    """The use of tokens of the month, sent when a link begins and after each change."""

    month: Month
    acknowledged: Count
    """Number of the last MonthReport of this link that was taken; 0: none."""
    processes: Annotated[int, Meta(ge=1, le=1 << 16)]
    """Gateway processes that are linked and share what is left."""
    totals: Annotated[tuple[MonthTotal, ...], Meta(max_length=MAX_LIMITS)]
    is_whole: bool
    """True: with the messages before it on this link every tenant was named that used anything this month."""


ToOperator = GatewayHello | Summary | Wake | Heartbeat | ModelConfigFile | LimitReport | MonthReport | TenantConflicts
ToGateway = Standby | FlipOrder | Heartbeat | TenantTable | LimitOrder | MonthTotals | HistoryDocument
