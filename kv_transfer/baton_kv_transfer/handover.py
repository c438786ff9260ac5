"""Types that both hand-over machines and their drivers share: identity, settings, the seams to KV pool and worker.

Each side has the pure `machine` that decides and the `transfer` that carries out what it decided.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

from baton_kv_transfer.transports.table import TransportChoice
from baton_wire.handshake import HANDSHAKE_S
from baton_wire.kv_shape import Units
from baton_wire.liveness import DEFAULT_LIVENESS, LivenessConfig
from baton_wire.messages.pair_link import FirstToken, PairMessage
from baton_wire.messages.values import Reason, RequestKey

UNANNOUNCED_CAPACITY = 4_096
"""Most messages, and most requests with progress, that are kept before the gateway announces their request."""
ENDED_CAPACITY, ENDED_S = 16_384, 120.0
"""How many ended hand-overs are remembered, and for how long: late messages about them are recognised."""


@dataclass(frozen=True, slots=True, order=True)
class HandoverKey:
    """One attempt of one request; everything that is held for a hand-over is released by this key."""

    request: bytes
    attempt: int
    rank: int = 0
    """The rank of the peer that this part of the hand-over is with (tensor parallelism)."""

    @classmethod
    def of(cls, key: RequestKey) -> HandoverKey:
        return cls(key.request, key.attempt)

    @property
    def without_rank(self) -> HandoverKey:
        """The key of the whole hand-over that this is a part of."""
        return HandoverKey(self.request, self.attempt) if self.rank else self

    @property
    def request_key(self) -> RequestKey:
        """The key that the worker uses."""
        return RequestKey(self.request, self.attempt)

    def __str__(self) -> str:
        return f"{self.request.hex()[:12]}/{self.attempt}" + (f"#{self.rank}" if self.rank else "")


class Verify(enum.StrEnum):
    """How much of a landed hand-over is checked before it is admitted."""

    FULL = "full"
    """Every piece's checksum, next to coverage, transfer, attempt and epoch."""
    STAMPS = "stamps"
    """Coverage, transfer, attempt and epoch only."""


@dataclass(frozen=True, slots=True)
class TransferConfig:
    """Settings of one worker's side of the KV transfer."""

    verify: Verify = Verify.FULL
    """Both sides of a pair must be set alike: a Seal without checksums is refused by a decode worker that verifies."""
    heartbeat_s: float = 0.5
    liveness: LivenessConfig = DEFAULT_LIVENESS
    """Silence after which a link is given up, whatever the kernel says about the connection."""
    handshake_s: float = HANDSHAKE_S
    """Bound of the handshake, of the exchange of hellos and of connecting."""
    link_wait_s: float = 10.0
    """How long a hand-over waits for a link to the worker that its request names."""
    unannounced_s: float = 30.0
    """How long messages and progress of a request that the gateway has not announced here yet are kept."""
    pin_s: float = 60.0
    """How long finished KV waits for a first answer (Grant or Wait) of the decode worker."""
    kept_s: float = 5.0
    """How long KV whose decode worker failed is kept for another one; 0: not at all."""
    closing_s: float = 5.0
    """How long an ended hand-over may wait for its writes in flight before its link is cut."""
    max_put_bytes: int = 4 << 20
    """Largest single write, also the largest piece that is checksummed, packed or scattered at once."""
    puts_in_flight: int = 8
    portion_bytes: int | None = None
    """How much of a stream must be complete, and how much must be left, for a prefill worker to report complete layer
    groups before the Seal. A decode worker that does not see writes arrive scatters them meanwhile. None: never."""
    transport: TransportChoice = TransportChoice.TCP
    measure_s: float = 0.03
    """About how long the bandwidth of a new link is measured, by its prefill worker."""
    min_bytes_per_s: float | None = None
    """A link that is measured slower is reported."""
    group_bytes: int = 1 << 20
    """Least bytes of a layer group of a whole stream: smaller ones cost more in calls than they save in waiting."""
    max_groups: int = 16
    lanes: int = 1
    """Data connections per pair (tcp)."""
    quarantine_share: float = 0.25
    """Share of the landing region that may be quarantined before the worker should drain and restart."""
    tick_s: float = 0.05


@dataclass(frozen=True, slots=True)
class Reservation:
    """The blocks that a decode worker's engine reserved for one request, and what they wait for."""

    total_tokens: int
    cached_tokens: int
    """The first tokens, whole blocks of them, whose KV the blocks hold already."""
    blocks: tuple[int, ...]
    choices: tuple[int, ...]
    """The choices whose first tokens the hand-over brings."""
    deadline_s: float


def ignore_duration(key: RequestKey, seconds: float) -> None:
    """Ignore how long a hand-over took, where nobody measures it."""


class KvSource(Protocol):
    """The prefill worker's KV pool. Calls come from one helper thread of the transfer, or for little from the transfer
    thread itself, never two at once for the same bytes."""

    def region(self) -> memoryview | None:
        """The whole pool as bytes, sent from without a copy; None when it is not host memory (then `pack` is used)."""
        ...

    def checksums(self, units: Units, /) -> bytes:
        """Little-endian uint64 per piece of the units, in stream order."""
        ...

    def pack(self, units: Units, out: memoryview, /) -> None:
        """Write the units in stream layout to `out`, whose length is exactly theirs."""
        ...


class KvSink(Protocol):
    """The decode worker's KV pool, same conventions as `KvSource`."""

    def scatter(self, stream: memoryview, units: Units, /) -> bytes:
        """Write the units from `stream` into their blocks. Returns the checksums of what was read."""
        ...


class PrefillListener(Protocol):
    """Reports to the prefill worker. Called on the transfer thread; must not block."""

    def on_granted(self, key: RequestKey) -> None:
        """A decode worker has room for this request's KV. At most once, before `on_release`."""
        ...

    def on_release(self, key: RequestKey) -> None:
        """Nothing reads this request's blocks any more. Exactly once for every `opened`."""
        ...

    def on_report(self, key: RequestKey, reason: Reason, detail: str, failed_attempt: int, kept: bool) -> None:
        """An attempt failed here, the gateway should know. At most once for each attempt, before `on_release`.

        `key` is the key that was opened, `failed_attempt` the attempt under way. `kept`: the KV may go elsewhere.
        """
        ...


class DecodeListener(Protocol):
    """Reports to the decode worker. Called on the transfer thread; must not block.

    Exactly one of the two comes for every `expected`; until then the reservation's blocks belong to the transfer.
    """

    def on_landed(self, key: RequestKey, first_tokens: tuple[FirstToken, ...]) -> None:
        """KV of all tokens is verified and in the reservation's blocks."""
        ...

    def on_failed(self, key: RequestKey, reason: Reason, detail: str) -> None:
        """Nothing was landed, nothing will be written any more. FINISHED and CANCELLED need no message to the
        gateway."""
        ...


@dataclass(frozen=True, slots=True)
class SendTo:
    """Send one message over the control link to the worker with epoch `peer`; dropped when that link is gone."""

    peer: bytes
    message: PairMessage


@dataclass(frozen=True, slots=True)
class CutLink:
    """Close everything towards `peer`: it broke the protocol, or a write to it does not end."""

    peer: bytes
    detail: str
