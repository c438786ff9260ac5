"""The decode worker's links from prefill workers: one listening port for control links and data connections.

Owns accepting, handshakes (a bounded number at once, each with a deadline), hellos, the check that the pair fits, and
the order up → messages → down. Hand-overs belong to the machine.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Protocol

import msgspec

from baton_kv_transfer.handover import TransferConfig
from baton_kv_transfer.layout import negotiated_unit
from baton_kv_transfer.link import PairLink
from baton_kv_transfer.network import Connection, DataConnection, Listener, Network
from baton_kv_transfer.ranks.tensor_parallel import require_ranks_fit
from baton_kv_transfer.transports.table import agreed
from baton_wire.errors import BadFieldsError, LinkLostError, TransferError, UnfitPairError
from baton_wire.fingerprint import require_fit
from baton_wire.handshake import Channel, LinkIdentity, LinkRole, Party, accept_handshake
from baton_wire.keys import KeyDirectory
from baton_wire.listening.handshake_pool import HandshakePool
from baton_wire.messages.pair_link import PairHello, PairMessage
from baton_wire.session import AlteredFrames, Session

log = logging.getLogger(__name__)

MAX_ORPHANED = 4_096


@dataclass(slots=True, eq=False)
class PrefillLink:
    """A linked prefill worker."""

    epoch: bytes
    hello: PairHello
    link: PairLink
    ended: asyncio.Event
    transport: str
    number: int
    """Number among all links of this worker so far; never used again."""


class AcceptorListener(Protocol):
    """Called in the loop's thread, in order: up, then messages and data connections, then down."""

    def on_up(self, linked: PrefillLink) -> None: ...

    def on_message(self, linked: PrefillLink, message: PairMessage) -> None: ...

    def on_refused(self, linked: PrefillLink, refusal: BadFieldsError) -> None:
        """A message of the prefill worker does not fit its type."""
        ...

    def on_data(self, linked: PrefillLink, connection: DataConnection) -> None:
        """An authenticated data connection of a linked worker; the listener owns it now."""
        ...

    def on_down(self, linked: PrefillLink, detail: str) -> None: ...


class Acceptor:
    """All links of one decode worker."""

    def __init__(
        self,
        hello: PairHello,
        keys: KeyDirectory,
        config: TransferConfig,
        listener: AcceptorListener,
        network: Network,
    ) -> None:
        self._hello = hello
        self._keys = keys
        self._config = config
        self._network = network
        self._link_listener = listener
        self._party = Party(LinkRole.DECODE, hello.epoch)
        self._listener: Listener | None = None
        self._tasks: dict[Connection, asyncio.Task[None]] = {}
        self._strangers: HandshakePool[Connection] = HandshakePool()
        """The tasks of connections that have not shaken hands yet."""
        self._complained_s = 0.0
        self.links: dict[bytes, PrefillLink] = {}
        self.refused = 0
        self.altered = AlteredFrames()
        self.orphaned: dict[bytes, None] = {}
        """Epochs of which a data connection came without a control link (any more), oldest first."""
        self._links_so_far = 0

    def describe(self, descriptor: bytes) -> None:
        """Set the data with which prefill workers reach the landing region; call it before `start`."""
        self._hello = msgspec.structs.replace(self._hello, descriptor=descriptor)

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port that was bound. Raises OSError when it is taken."""
        self._listener = await self._network.listen(host, port, self._accept)
        return self._listener.port

    async def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def cut(self, epoch: bytes, detail: str) -> None:
        linked = self.links.get(epoch)
        if linked is not None:
            linked.link.close(detail)

    def _accept(self, connection: Connection) -> None:
        task = asyncio.create_task(self._welcome(connection))
        self._tasks[connection] = task
        evicted = self._strangers.enter(connection.source, connection)
        if evicted is not None:
            # Its task closes it: a socket closed under a pending read would leave its number to the next one.
            self._tasks[evicted].cancel()
        task.add_done_callback(lambda done: self._parted(done, connection))

    def _parted(self, task: asyncio.Task[None], connection: Connection) -> None:
        self._tasks.pop(connection, None)
        if task.cancelled():  # possibly before its first step, which nothing inside it could have seen
            self._strangers.leave(connection)
            connection.close()

    async def _welcome(self, connection: Connection) -> None:
        handed_over = False
        try:
            try:
                identity, session = await accept_handshake(
                    connection.send,
                    connection.receive,
                    self._keys,
                    self._party,
                    accept_roles=(LinkRole.PREFILL,),
                    altered=self.altered,
                    timeout_s=self._config.handshake_s,
                )
            finally:
                self._strangers.leave(connection)
            if identity.channel is Channel.DATA:
                handed_over = self._take_data(identity, DataConnection(connection, session))
            else:
                await self._take_control(identity, connection, session)
        except (TransferError, OSError, TimeoutError) as error:
            self._refuse(error)
        finally:
            if not handed_over:
                connection.close()

    def _refuse(self, error: Exception) -> None:
        """Count, and say so at most once a second: strangers must not fill the log."""
        self.refused += 1
        now = asyncio.get_running_loop().time()
        if now - self._complained_s >= 1.0:
            self._complained_s = now
            log.warning("pair link refused (%d so far): %s", self.refused, error or type(error).__name__)

    def _take_data(self, identity: LinkIdentity, connection: DataConnection) -> bool:
        linked = self.links.get(identity.epoch)
        if linked is None:
            self.orphaned[identity.epoch] = None
            if len(self.orphaned) > MAX_ORPHANED:
                del self.orphaned[next(iter(self.orphaned))]
            raise LinkLostError("a data connection of a worker that is not linked")
        self._link_listener.on_data(linked, connection)
        return True

    async def _take_control(self, identity: LinkIdentity, connection: Connection, session: Session) -> None:
        config = self._config
        link = PairLink(connection, identity, session, heartbeat_s=config.heartbeat_s, liveness=config.liveness)
        async with asyncio.timeout(config.handshake_s):
            hello = await link.receive()
        if not isinstance(hello, PairHello) or hello.epoch != identity.epoch or hello.role != "prefill":
            raise LinkLostError("the first message was not the hello of the prefill worker that shook hands")
        try:
            require_fit(self._hello.fingerprint, hello.fingerprint)
            negotiated_unit(self._hello.block_tokens, hello.block_tokens)
            require_ranks_fit(hello.fingerprint.kv_heads, self._hello.tensor_parallel, hello.tensor_parallel)
            transport = agreed(self._hello.transports, hello.transports)
        except UnfitPairError as error:
            await link.send_now(self._hello)  # so that the other side can name the difference too
            raise UnfitPairError(f"prefill worker {identity.epoch.hex()[:8]}: {error}") from error
        await self._replace(identity.epoch)
        self._links_so_far += 1
        await self._serve(PrefillLink(identity.epoch, hello, link, asyncio.Event(), transport, self._links_so_far))

    async def _replace(self, epoch: bytes) -> None:
        """The same process dialled again: its old link has broken on its side, whatever it looks like here."""
        while (known := self.links.get(epoch)) is not None:
            known.link.close("replaced by a new link of the same process")
            await known.ended.wait()

    async def _serve(self, linked: PrefillLink) -> None:
        detail = "stopped"
        self.links[linked.epoch] = linked  # before the hello: its answer are data connections
        linked.link.send(self._hello)
        self._link_listener.on_up(linked)
        try:
            detail = await linked.link.run(
                lambda message: self._link_listener.on_message(linked, message),
                lambda refusal: self._link_listener.on_refused(linked, refusal),
            )
        finally:
            linked.link.close(detail)
            del self.links[linked.epoch]
            log.info("link from prefill worker %s ended: %s", linked.epoch.hex()[:8], detail)
            self._link_listener.on_down(linked, detail)
            linked.ended.set()
