"""The parts that a worker gives to its side of the KV transfer, whichever side that is."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

from baton_kv_transfer.handover import TransferConfig
from baton_kv_transfer.network import Network, Sockets
from baton_kv_transfer.transports.seam import Transport
from baton_kv_transfer.transports.table import offered
from baton_wire.keys import KeyDirectory
from baton_wire.kv_shape import KvGeometry
from baton_wire.messages.pair_link import PairHello
from baton_wire.messages.values import PairFingerprint, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferParts:
    """The identity of a worker, the shape of its KV, and the means of its transfer.

    A worker has as many ranks as it hands pools to its transfer.
    """

    epoch: bytes
    fingerprint: PairFingerprint
    geometry: KvGeometry
    """With all KV heads of the model, whatever the number of ranks."""
    keys: KeyDirectory
    config: TransferConfig = field(default_factory=TransferConfig)
    transports: Sequence[Transport] | None = None
    """None: the transports that `config` offers on this machine."""
    network: Network = field(default_factory=Sockets)
    executor: Executor | None = None
    """Runs long work on KV: checksums, packing, scattering. None: a thread of the transfer's own."""

    def rows(self) -> Sequence[Transport]:
        """The transports that this worker offers to a pair."""
        return offered(self.config.transport) if self.transports is None else self.transports

    def hello(self, role: Role, transports: Sequence[Transport], ranks: int, landing_bytes: int = 0) -> PairHello:
        """The first message on each control link; a decode worker adds its descriptor later."""
        return PairHello(
            role=role,
            epoch=self.epoch,
            fingerprint=self.fingerprint,
            block_tokens=self.geometry.block_tokens,
            tensor_parallel=ranks,
            landing_bytes=landing_bytes,
            transports=tuple(row.name for row in transports),
            descriptor=b"",
        )
