"""The prefill worker's links to decode workers: dialled from discovery and on demand, kept up, one per decode process.

Owns dialling, hellos, the check that the pair fits, data connections and the order up → messages → down. Hand-overs
belong to the machine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from baton_kv_transfer.handover import TransferConfig
from baton_kv_transfer.layout import negotiated_unit
from baton_kv_transfer.link import PairLink
from baton_kv_transfer.network import Connection, DataConnection, Network
from baton_kv_transfer.prefill.recent_rate import RecentRate
from baton_kv_transfer.ranks.tensor_parallel import require_ranks_fit
from baton_kv_transfer.transports.seam import Sender, Writer
from baton_kv_transfer.transports.table import agreed
from baton_wire.errors import (
    AuthenticationError,
    BadFieldsError,
    LinkLostError,
    OwnEpochError,
    TransferError,
    UnfitPairError,
)
from baton_wire.fingerprint import require_fit
from baton_wire.handshake import Channel, LinkIdentity, LinkRole, Party, dial_handshake
from baton_wire.keys import KeyDirectory
from baton_wire.messages.pair_link import PairHello, PairMessage
from baton_wire.messages.values import Address
from baton_wire.session import AlteredFrames, Session

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
OWN_PAUSE_S = 60.0
"""Before an address is dialled again where this very process answered, or a process with its epoch."""
AVOIDED_S = 60.0
"""How long a transport that did not come up with a peer is not offered to it, where another one is."""


@dataclass(slots=True, eq=False)
class DecodeLink:
    """A linked decode worker."""

    epoch: bytes
    address: Address
    hello: PairHello
    link: PairLink
    writer: Writer
    transport: str
    bytes_per_s: float | None = None
    """Measured; None: not known."""
    recent: RecentRate = field(default_factory=RecentRate)
    """Bytes and busy times of the last minute."""


class DiallerListener(Protocol):
    """Called in the loop's thread, in order: up, then messages, then down."""

    def on_up(self, linked: DecodeLink) -> None: ...

    def on_message(self, linked: DecodeLink, message: PairMessage) -> None: ...

    def on_refused(self, linked: DecodeLink, refusal: BadFieldsError) -> None:
        """A message of the decode worker does not fit its type."""
        ...

    def on_down(self, linked: DecodeLink, detail: str) -> None: ...

    def on_seen(self, address: Address, epoch: bytes) -> None:
        """This process answers at this address: any other epoch that was thought to be there is not."""
        ...

    def on_unfit(self, epoch: bytes, detail: str) -> None: ...


class Dialler:
    """All links of one prefill worker."""

    def __init__(
        self,
        hello: PairHello,
        keys: KeyDirectory,
        config: TransferConfig,
        senders: Mapping[str, Sender],
        listener: DiallerListener,
        network: Network,
    ) -> None:
        self._hello = hello
        self._senders = senders
        self._avoided_until: dict[tuple[Address, str], float] = {}
        self._keys = keys
        self._config = config
        self._network = network
        self._listener = listener
        self._party = Party(LinkRole.PREFILL, hello.epoch)
        self._discovered: frozenset[Address] = frozenset()
        self._wanted_until: dict[Address, float] = {}
        self._tasks: dict[Address, asyncio.Task[None]] = {}
        self.links: dict[bytes, DecodeLink] = {}
        self.failures = 0
        self.altered = AlteredFrames()

    def discovered(self, addresses: Iterable[Address]) -> None:
        """Keep links to all these addresses. Links to others stay as long as they live."""
        in_order = tuple(addresses)
        self._discovered = frozenset(in_order)
        for address in in_order:
            self._keep_up(address)

    def want(self, address: Address, until_s: float) -> None:
        """Keep trying to link this address until then, discovered or not."""
        self._wanted_until[address] = max(until_s, self._wanted_until.get(address, 0.0))
        self._keep_up(address)

    def cut(self, epoch: bytes, detail: str) -> None:
        linked = self.links.get(epoch)
        if linked is not None:
            linked.link.close(detail)

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _keep_up(self, address: Address) -> None:
        if address not in self._tasks:
            task = asyncio.create_task(self._keep(address))
            self._tasks[address] = task
            task.add_done_callback(lambda _: self._tasks.pop(address, None))

    def _is_wanted(self, address: Address) -> bool:
        if address in self._discovered:
            return True
        if asyncio.get_running_loop().time() < self._wanted_until.get(address, 0.0):
            return True
        self._wanted_until.pop(address, None)
        return False

    async def _keep(self, address: Address) -> None:
        pause = FIRST_PAUSE_S
        while self._is_wanted(address):
            try:
                linked = await self._dial(address)
            except OwnEpochError:  # a worker that flips discovers itself among the workers to dial
                await asyncio.sleep(OWN_PAUSE_S)
                continue
            except (TransferError, OSError, TimeoutError) as error:
                self.failures += 1
                if pause >= LONGEST_PAUSE_S or isinstance(error, AuthenticationError | UnfitPairError):
                    log.warning("no link to decode worker %s: %s", address, error or type(error).__name__)
                pause = min(pause * 2, LONGEST_PAUSE_S)
                await asyncio.sleep(pause)
                continue
            if linked is not None:
                pause = FIRST_PAUSE_S
                await self._serve(linked)
            await asyncio.sleep(pause)

    async def _serve(self, linked: DecodeLink) -> None:
        detail = "stopped"
        self.links[linked.epoch] = linked
        self._listener.on_up(linked)
        try:
            detail = await linked.link.run(
                lambda message: self._listener.on_message(linked, message),
                lambda refusal: self._listener.on_refused(linked, refusal),
            )
        finally:
            linked.link.close(detail)
            linked.writer.close(detail)
            del self.links[linked.epoch]
            log.info("link to decode worker %s ended: %s", linked.address, detail)
            self._listener.on_down(linked, detail)

    async def _dial(self, address: Address) -> DecodeLink | None:
        """Link the process that answers at `address`; None when it is linked already (by another of its addresses)."""
        connection, identity, session = await self._handshake(address, Channel.CONTROL)
        try:
            self._listener.on_seen(address, identity.epoch)
            if identity.epoch in self.links:
                connection.close()
                return None
            return await self._greet(address, connection, identity, session)
        except BaseException:
            connection.close()
            raise

    async def _greet(
        self, address: Address, connection: Connection, identity: LinkIdentity, session: Session
    ) -> DecodeLink:
        config = self._config
        link = PairLink(connection, identity, session, heartbeat_s=config.heartbeat_s, liveness=config.liveness)
        own = msgspec.structs.replace(self._hello, transports=self._offered_to(address))
        async with asyncio.timeout(config.handshake_s):
            await link.send_now(own)
            hello = await link.receive()
        if not isinstance(hello, PairHello) or hello.epoch != identity.epoch or hello.role != "decode":
            raise LinkLostError("the first message was not the hello of the decode worker that shook hands")
        try:
            require_fit(self._hello.fingerprint, hello.fingerprint)
            negotiated_unit(self._hello.block_tokens, hello.block_tokens)
            require_ranks_fit(hello.fingerprint.kv_heads, self._hello.tensor_parallel, hello.tensor_parallel)
            transport = agreed(hello.transports, own.transports)
        except UnfitPairError as error:
            self._listener.on_unfit(identity.epoch, str(error))
            raise
        try:
            writer = await self._writer(self._senders[transport], address, hello, link)
        except TransferError:
            if len(own.transports) > 1:
                self._avoided_until[address, transport] = asyncio.get_running_loop().time() + AVOIDED_S
            raise
        return DecodeLink(identity.epoch, address, hello, link, writer, transport)

    def _offered_to(self, address: Address) -> tuple[str, ...]:
        """Transports that a dial to this address names in its hello."""
        now = asyncio.get_running_loop().time()
        self._avoided_until = {place: until for place, until in self._avoided_until.items() if now < until}
        return tuple(name for name in self._hello.transports if (address, name) not in self._avoided_until)

    async def _writer(self, sender: Sender, address: Address, hello: PairHello, link: PairLink) -> Writer:
        lanes: list[DataConnection] = []
        try:
            while len(lanes) < sender.connections:
                connection, identity, session = await self._handshake(address, Channel.DATA)
                lanes.append(DataConnection(connection, session))
                if identity.epoch != hello.epoch:
                    raise LinkLostError("another process answered the data connection")
            return await sender.open(hello, lanes, link.close, self._config.handshake_s)
        except BaseException:
            for lane in lanes:
                lane.close()
            raise

    async def _handshake(self, address: Address, channel: Channel) -> tuple[Connection, LinkIdentity, Session]:
        async with asyncio.timeout(self._config.handshake_s):
            connection = await self._network.connect(address.host, address.port)
        try:
            identity, session = await dial_handshake(
                connection.send,
                connection.receive,
                self._keys,
                self._party,
                channel=channel,
                accept_roles=(LinkRole.DECODE,),
                altered=self.altered,
                timeout_s=self._config.handshake_s,
            )
        except BaseException:
            connection.close()
            raise
        return connection, identity, session
