"""The simulated network: paths that can be cut and slowed, connections of two ends over them, dialling again and again.

A connection keeps messages in order, each with the MAC of its production session. A cut path holds what is sent until
it heals (as TCP sends again) or the connection dies. Silence is noticed by the production `Liveness` of each end.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from baton_testing.simulation.process import SimProcess, Surroundings, require
from baton_testing.simulation.scenario import Fault
from baton_wire.errors import BadMessageError
from baton_wire.liveness import Liveness, LivenessConfig, PeerState
from baton_wire.session import AlteredFrames, Session, session_keys

PULSE_S = 0.5
REMEMBERED = 4
FIN = "FIN"
FIRST_BYTES = 4
"""The offset in a message at which its kind and request begin."""


class Network(Surroundings, Protocol):
    connections: list[Connection]
    make_liveness: Callable[..., Liveness]
    make_session: Callable[..., Session]
    message_s: float

    def process_at(self, address: str) -> SimProcess | None: ...


@dataclass(slots=True, eq=False)
class Path:
    """The way between two places; `out` is from who dials."""

    name: str
    out_cut: bool = False
    back_cut: bool = False
    slow_s: float = 0.0
    held: list[tuple[bool, Callable[[], None]]] = field(default_factory=list)
    delay_next_s: float = 0.0
    duplicate_next: bool = False
    hold_writes_s: float = 0.0
    flip_next: float | None = None
    """In [0, 1): which bit of the next frame is flipped."""
    trickle_s: float = 0.0
    """Seconds from byte to byte."""
    heard: defaultdict[tuple[bytes, bytes], deque[Any]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=REMEMBERED))
    )
    """The last messages of a pair link, from process to process: only what came can come twice."""
    repeat_next: set[tuple[bytes, bytes]] = field(default_factory=set)

    @property
    def is_cut(self) -> bool:
        return self.out_cut or self.back_cut

    def cut_of(self, is_out: bool) -> bool:
        return self.out_cut if is_out else self.back_cut

    def flipped(self, frame: bytes, first: int) -> bytes:
        """The frame as `flip_next` wants it, which is over then. A quarter of all flips are in the `first` bytes."""
        assert self.flip_next is not None
        share, self.flip_next = self.flip_next, None
        bit = int(share * 4 * 8 * first) if share < 0.25 else int((share - 0.25) / 0.75 * 8 * len(frame))
        altered = bytearray(frame)
        altered[bit // 8] ^= 1 << bit % 8
        return bytes(altered)

    def heal(self) -> list[Callable[[], None]]:
        self.out_cut = self.back_cut = False
        held, self.held = self.held, []
        return [call for _, call in held]


class Party(Protocol):
    """Receives the events of one of a process's connections."""

    def received(self, end: End, message: Any) -> None: ...

    def lost(self, end: End, detail: str) -> None: ...


class End:
    """One side of a connection."""

    def __init__(self, connection: Connection, process: SimProcess, party: Party, is_dialler: bool) -> None:
        self.connection, self.process, self.party, self.is_dialler = connection, process, party, is_dialler
        self.is_up = True
        self.has_greeted = False
        self.silent_since = connection.world.heap.now
        world = connection.world
        self.liveness = world.make_liveness(LivenessConfig(), world.heap.now)
        keys = session_keys(b"k" * 32, f"{connection.path.name} {world.heap.now}".encode())
        ours, theirs = keys if is_dialler else reversed(keys)
        self.session = world.make_session(ours, theirs, AlteredFrames())
        self.arrival_s = 0.0
        self.heard: deque[Any] = deque(maxlen=REMEMBERED)
        """The last that reached the other side: only what came can come twice."""

    @property
    def other(self) -> End:
        return self.connection.acceptor if self.is_dialler else self.connection.dialler

    def send(self, message: bytes) -> bool:
        """Queue a message for the other side; False when this end is closed."""
        if not self.is_up:
            return False
        self.connection.carry(self, self.session.sign(message))
        return True

    def close(self, detail: str) -> None:
        if not self.is_up:
            return
        self.is_up = False
        self.process.note(f"{self.connection.path.name} closed: {detail}")
        self.connection.carry(self, FIN)
        self.party.lost(self, detail)

    def look(self, now: float) -> PeerState:
        return self.liveness.state(now)


class Connection:
    """Two ends over a path. Made by `Dial`."""

    def __init__(
        self, world: Network, path: Path, processes: tuple[SimProcess, SimProcess], parties: tuple[Party, Party]
    ) -> None:
        self.world, self.path = world, path
        self.dialler = End(self, processes[0], parties[0], True)
        self.acceptor = End(self, processes[1], parties[1], False)
        world.connections.append(self)

    @property
    def is_over(self) -> bool:
        return not (self.dialler.is_up or self.acceptor.is_up)

    def carry(self, end: End, message: Any) -> None:
        world, path = self.world, self.path
        if path.flip_next is not None and message is not FIN:
            message = path.flipped(message, FIRST_BYTES)
            world.count(Fault.FLIP)
            end.process.note(f"{path.name} a bit of a frame is flipped")
        extra, path.delay_next_s = path.delay_next_s, 0.0
        if extra:
            world.count(Fault.DELAY)
        now = world.heap.now
        end.arrival_s = max(end.arrival_s + 1e-6, now + world.delay(world.message_s) + path.slow_s + extra)
        is_greeting = message is FIN or not (end.is_dialler or end.has_greeted)
        end.has_greeted = True
        world.heap.after(end.arrival_s - now, lambda: self._arrive(end, message, is_greeting))

    def _arrive(self, end: End, message: Any, is_greeting: bool) -> None:
        other = end.other
        if self.path.cut_of(end.is_dialler):
            self.path.held.append((end.is_dialler, lambda: self._arrive(end, message, is_greeting)))
        elif not other.is_up:
            if message is not FIN:
                self.world.count(Fault.LOSS)
        else:
            other.process.run(lambda: self._take(other, message, is_greeting))

    def _take(self, end: End, message: Any, is_greeting: bool) -> None:
        if not end.is_up:
            return
        if message is FIN:
            end.close("the other side closed it")
            return
        try:
            frame = end.session.verify(message)
            if not is_greeting:
                end.other.heard.append(frame)
            end.liveness.heard(self.world.heap.now)
            end.silent_since = self.world.heap.now
            end.party.received(end, frame)
        except BadMessageError as error:
            end.close(str(error))

    def pulse(self) -> None:
        """Heartbeats both ways, then both sides look."""
        now = self.world.heap.now
        for end in (self.dialler, self.acceptor):
            other = end.other
            can_send = end.is_up and end.process.is_running and not self.path.cut_of(end.is_dialler)
            if can_send and other.is_up and other.process.is_running:
                other.liveness.heard(now)
                other.silent_since = now
        for end in (self.dialler, self.acceptor):
            if not end.process.is_running:
                end.silent_since = now
            silent_s = now - end.silent_since
            require(not end.is_up or silent_s < 5.0, "I3", f"{self.path.name}: a silent peer is kept {silent_s:.1f} s")
            if end.is_up and end.process.is_running and end.look(now) is PeerState.DEAD:
                end.process.run(lambda end=end: end.close("silent for too long"))  # type: ignore[misc]

    def died(self, process: SimProcess) -> None:
        """The kernel closes what a killed process had open."""
        for end in (self.dialler, self.acceptor):
            if end.process is process and end.is_up:
                end.is_up = False
                self.carry(end, FIN)


class Dial:
    """Keeps one process connected to the process at an address."""

    def __init__(
        self,
        process: SimProcess,
        path: Path,
        address: str,
        accept: Callable[[SimProcess, Connection], None],
        party: Party,
        acceptor_party: Callable[[SimProcess], Party],
    ) -> None:
        self.process, self.path, self.address = process, path, address
        self._accept, self._party, self._acceptor_party = accept, party, acceptor_party
        self.connection: Connection | None = None
        self._world: Network = process.surroundings  # type: ignore[assignment]
        process.later(self._world.delay(0.05), self._try)

    def _try(self) -> None:
        world = self._world
        current = self.connection
        if current is None or not current.dialler.is_up:
            peer = world.process_at(self.address)
            if peer is not None and peer.is_running and not self.path.is_cut:
                self._connect(peer)
        self.process.later(0.2 + world.delay(0.3), self._try)

    def _connect(self, peer: SimProcess) -> None:
        before = self.connection
        connection = Connection(self._world, self.path, (self.process, peer), (self._party, self._acceptor_party(peer)))
        self.connection = connection
        peer.run(lambda: self._accept(peer, connection))
        if self.path.duplicate_next and before is not None and before.acceptor.process is peer:
            self.path.duplicate_next = False
            for old, new in ((before.dialler, connection.dialler), (before.acceptor, connection.acceptor)):
                for message in list(old.heard):
                    self._world.count(Fault.DUPLICATE)
                    self._world.heap.after(0.2, lambda new=new, message=message: new.send(message))  # type: ignore[misc]
