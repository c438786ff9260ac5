"""What both production transfers stand on here: keys, and the memory transport between two simulated processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from baton_kv_transfer.handover import TransferConfig
from baton_kv_transfer.link import PairLink
from baton_kv_transfer.network import DataConnection
from baton_kv_transfer.transports.seam import Writer
from baton_testing.kv_transfer.memory_transport import MemoryLanding, MemoryWriter
from baton_testing.simulation.network import Path
from baton_testing.simulation.process import SimProcess, require
from baton_testing.simulation.scenario import Fault
from baton_testing.simulation.streams import Stream
from baton_testing.virtual_time.loop import VirtualLoop
from baton_wire.errors import LinkLostError
from baton_wire.keys import KeyDirectory, KeySet
from baton_wire.messages.pair_link import Heartbeat, PairHello, PairMessage

TRANSFER = TransferConfig(
    link_wait_s=2.0,
    unannounced_s=2.0,
    pin_s=3.0,
    kept_s=1.5,
    closing_s=1.0,
    max_put_bytes=96,
    group_bytes=32,
    portion_bytes=32,
    quarantine_share=0.9,
    tick_s=0.25,
)
LONGEST_SILENCE_S = 7.2
"""Of whole frames on a link: two silences and the longest frame that a wrong length can promise."""
AGAIN_S = 0.2


class _OneKey:
    def current(self) -> KeySet:
        return KeySet({"k1": b"k" * 32})


KEYS = cast(KeyDirectory, _OneKey())


class Landing(MemoryLanding):
    """A data connection that breaks takes its peer's link with it, as over TCP."""

    def attach(self, connection: DataConnection, peer: bytes, link: int) -> None:
        stream = cast(Stream, connection.connection)
        stream.on_end = lambda detail: self.guard.breached(peer, f"data connection: {detail}")

    def link_down(self, peer: bytes, link: int, is_stranger: Callable[[], bool]) -> None:
        """One-sided writes can be stopped at the other side alone."""
        if not self.one_sided:
            self.drop(peer)


class LandingProcess(Protocol):
    """Where the bytes of a stream's other end land."""

    landing: Landing
    thread: VirtualLoop


class Sender:
    """Writes from one prefill worker's memory into a decode worker's, over the path between them."""

    connections = 1

    def __init__(self, process: SimProcess, thread: VirtualLoop) -> None:
        self._process, self._thread = process, thread

    async def start(self) -> None:
        """Nothing to bring up."""

    async def stop(self) -> None:
        """Nothing to take down."""

    async def open(
        self, hello: PairHello, connections: Sequence[DataConnection], on_lost: Callable[[str], None], timeout_s: float
    ) -> Writer:
        stream = cast(Stream, connections[0].connection)
        target = cast(Any, stream.other.process)
        if not stream.other.is_up:
            raise LinkLostError("data connection: refused")
        process, world = self._process, self._process.surroundings

        def broke(detail: str) -> None:
            writer.close(detail)
            on_lost(f"data connection: {detail}")

        writer = ClosingWriter(
            process.epoch,
            target.landing,
            lambda delay_s, call: self._carry(stream.path, target, delay_s, call),
            lambda: world.delay(0.02),
            on_lost,
        )
        writer.stream = stream
        stream.on_end = broke
        return writer

    def _carry(self, path: Path, target: LandingProcess, delay_s: float, call: Callable[[], None]) -> None:
        """Bytes move while the sender lives and nothing is cut; where the receiver writes itself, only when it runs."""
        if delay_s == 0.0:  # the sender gave a write up: nothing of it travels
            self._thread.call_soon(call)
            return
        world = self._process.surroundings
        held_s, path.hold_writes_s = path.hold_writes_s, 0.0
        if held_s:
            world.count(Fault.LATE_WRITE)

        def arrive() -> None:
            if not self._process.is_alive:
                return
            if path.is_cut:
                path.held.append((True, arrive))
            else:
                (self._thread if target.landing.one_sided else target.thread).call_soon(call)

        world.heap.after(delay_s + held_s + path.slow_s, arrive)


class ClosingWriter(MemoryWriter):
    """Ends its data connection with itself."""

    stream: Stream

    def close(self, detail: str) -> None:
        super().close(detail)
        self.stream.on_end = None
        self.stream.close()


class Watch:
    """Looks at the messages of one process's pair links: repeats them over the next link, and asks for whole frames."""

    def __init__(self, process: SimProcess) -> None:
        self._process = process
        self._whole_s: dict[PairLink, float] = {}

    def up(self, link: PairLink, peer: bytes, path: Path) -> None:
        """The messages that the peer had from here over former links come once more, when that is planned."""
        self._whole_s[link] = self._process.awake_s
        mine = self._process.epoch, peer
        if mine not in path.repeat_next or not path.heard[mine]:
            return
        path.repeat_next.discard(mine)
        world = self._process.surroundings
        for message in list(path.heard[mine]):
            world.count(Fault.DUPLICATE)
            world.heap.after(AGAIN_S, lambda message=message: link.send(message))  # type: ignore[misc]

    def got(self, link: PairLink, peer: bytes, message: PairMessage, path: Path) -> None:
        self._whole_s[link] = self._process.awake_s
        if not isinstance(message, Heartbeat):
            path.heard[peer, self._process.epoch].append(message)

    def down(self, link: PairLink) -> None:
        self._whole_s.pop(link, None)

    def check(self) -> None:
        for since_s in self._whole_s.values():
            silent_s = self._process.awake_s - since_s
            name = self._process.name
            require(silent_s < LONGEST_SILENCE_S, "I3", f"{name} keeps a link without a frame for {silent_s:.1f} s")
