"""Links to the workers: dial, prove the key, take Hello and bundle, pass messages on, watch for silence, redial.

One WebSocket per worker, every frame with its MAC. A link that is lost ends everything that ran over it; the same
address with another epoch is another worker.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Never, Protocol

import aiohttp

from baton_gateway.answers.formats import DETECTED_FORMATS, FormatNames
from baton_gateway.errors import BundleError
from baton_gateway.link_session import link_session
from baton_gateway.text.revision_text import TextModel
from baton_gateway.text.text_store import TextStore
from baton_gateway.workers.linked_workers import LinkedWorker, WorkerTable
from baton_gateway.workers.outbox import LinkOutbox, ToWorker, write_out
from baton_gateway.workers.refused_frames import salvage
from baton_gateway.workers.state_validation import clamp_state, find_hello_fault
from baton_wire.errors import AuthenticationError, BadFieldsError, BadMessageError, TransferError
from baton_wire.fair_loop.charging import charged_context
from baton_wire.fair_loop.fair_queue import Account
from baton_wire.handshake import HANDSHAKE_S, LinkRole, Party, dial_handshake
from baton_wire.keys import KeyDirectory
from baton_wire.listening.complaints import Complaints
from baton_wire.liveness import DEFAULT_LIVENESS, Liveness, LivenessConfig, PeerState
from baton_wire.messages.codec import decode
from baton_wire.messages.encoding import EncodedPrompt
from baton_wire.messages.flood import Flood
from baton_wire.messages.gateway_link import (
    AskCachedPlaces,
    BundleChunk,
    CachedPlaces,
    Cancel,
    Hello,
    LegFailed,
    PromptLogprobs,
    ToGateway,
    Tokens,
    WorkerState,
)
from baton_wire.messages.values import POOL_ROLES, Address, Role
from baton_wire.reset import reset
from baton_wire.session import MAX_SIGNED_BYTES, AlteredFrames, Session, SignedFrames

_log = logging.getLogger("baton.gateway.links")
MOST_STATES = 1_000
"""States accepted from a worker in a second: a busy one sends 333."""
TURN_FRAMES = 32
TURN_S = 0.004
"""Frames received in a row, and the time that they may take, before other tasks run: a peer that sends without end, or
long frames, holds up no other.
"""
PAUSE_S = 0.005
"""How long links are not read where too many tokens wait to be delivered."""
SILENT_S = 0.8
"""A worker sends a heartbeat after 0.5 s without another message: one that sends nothing for this long was silent."""

REFUSAL_CODES = (
    aiohttp.WSCloseCode.PROTOCOL_ERROR,
    aiohttp.WSCloseCode.UNSUPPORTED_DATA,
    aiohttp.WSCloseCode.INVALID_TEXT,
    aiohttp.WSCloseCode.POLICY_VIOLATION,
    aiohttp.WSCloseCode.MESSAGE_TOO_BIG,
    aiohttp.WSCloseCode.INTERNAL_ERROR,
)
"""Codes with which a live worker closes a link because of a message."""


class LinkListener(Protocol):
    """Receives the events of workers, and their results."""

    def worker_changed(self) -> None: ...
    def worker_flipped(self) -> None:
        """A worker reported that it carried out another flip."""
        ...

    def worker_reported(self) -> None: ...
    def worker_lost(self, epoch: bytes, is_refusal: bool = False) -> None:
        """`is_refusal`: the worker lives, and closed the link because of a message."""
        ...

    def worker_silent(self, epoch: bytes, from_s: float, until_s: float) -> None:
        """A worker that is heard again had sent nothing for longer than it may."""
        ...

    @property
    def is_behind(self) -> bool:
        """True if links should not be read for a moment."""
        ...

    def tokens(self, epoch: bytes, frame: Tokens) -> None: ...
    def prompt_logprobs(self, epoch: bytes, message: PromptLogprobs) -> None: ...
    def encoded(self, epoch: bytes, message: EncodedPrompt) -> None: ...
    def leg_failed(self, epoch: bytes, message: LegFailed) -> None: ...
    def unsent(self, message: ToWorker, refusal: BadFieldsError) -> None:
        """A message was not sent: the worker would have refused it."""
        ...


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """Seconds. Heartbeats go out after `heartbeat_s` without another message."""

    heartbeat_s: float = 0.5
    liveness: LivenessConfig = DEFAULT_LIVENESS
    setup_s: float = 10.0
    """From dialling to the complete bundle."""
    settle_s: float = 2.0
    """After the start, until empty discovery counts as an answer."""
    relink_s: float = 3.0
    """After a lost link, until an address that does not answer counts as no worker."""
    first_retry_s: float = 0.1
    last_retry_s: float = 2.0


class WorkerLinks:
    """Keeps one link to every known address, for as long as it is known or lives."""

    def __init__(
        self,
        table: WorkerTable,
        listener: LinkListener,
        keys: KeyDirectory,
        epoch: bytes,
        altered: AlteredFrames,
        times: LinkTimes = LinkTimes(),
        formats: FormatNames = DETECTED_FORMATS,
    ) -> None:
        """`epoch` is this gateway process's own. `altered` counts frames that did not arrive unchanged. `formats`: how
        the models write calls and thoughts.
        """
        self.texts = TextStore(formats=formats)
        party, complaints = Party(LinkRole.GATEWAY, epoch), Complaints(_log)
        self._shared = _Shared(table, listener, keys, party, times, self.texts, altered, complaints)
        self._times = times
        self._wanted: dict[Role, set[Address]] = {}
        self._tasks: dict[Address, asyncio.Task[None]] = {}
        self._session: aiohttp.ClientSession | None = None
        self._context = charged_context(Account("links", is_service=True))
        """Reading has its own part of the loop's time: all tenants wait for it."""
        self._table = table
        self._untried: set[Address] = set()
        self._settles_by_s = 0.0

    async def start(self) -> None:
        self._session = link_session()
        self._settles_by_s = self._table.settled_s = _now() + self._times.settle_s

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.texts.stop()
        if self._session is not None:
            await self._session.close()

    def update_addresses(self, role: Role, addresses: Iterable[Address]) -> None:
        """Take the discovered addresses of a role. A live link to an address that is no longer listed stays until it
        ends by itself, and a link to one that is now listed under another role stays unchanged.
        """
        self._wanted[role] = set(addresses)
        for address in self._wanted[role]:
            if address not in self._tasks:
                self._await_first_try(address)
                task = self._tasks[address] = asyncio.create_task(
                    self._keep(address), name=f"link {address}", context=self._context.copy()
                )
                task.add_done_callback(functools.partial(self._ended, address))

    def _ended(self, address: Address, task: asyncio.Task[None]) -> None:
        self._tasks.pop(address, None)
        self._record_try(address)

    def _await_first_try(self, address: Address) -> None:
        """An address was discovered before this process knows which workers it can reach."""
        if _now() < self._table.settled_s:
            self._untried.add(address)
            self._table.settled_s = _now() + self._times.setup_s

    def _record_loss(self, address: Address) -> None:
        """Perhaps this process itself was stopped or cut off; that is unknown until it has dialled again."""
        self._untried.add(address)
        self._table.settled_s = max(self._table.settled_s, _now() + self._times.relink_s)

    def _record_try(self, address: Address) -> None:
        if address in self._untried:
            self._untried.discard(address)
            if not self._untried:
                self._table.settled_s = _now() if len(self._wanted) > 1 else self._settles_by_s

    def _roles(self, address: Address) -> frozenset[Role]:
        return frozenset(role for role, named in self._wanted.items() if address in named)

    async def _keep(self, address: Address) -> None:
        delay_s = self._times.first_retry_s
        while roles := self._roles(address):
            was_linked = await self._link_once(roles, address)
            delay_s = self._times.first_retry_s if was_linked else min(self._times.last_retry_s, delay_s * 2)
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))

    async def _link_once(self, roles: frozenset[Role], address: Address) -> bool:
        assert self._session is not None
        tried, lost = (functools.partial(record, address) for record in (self._record_try, self._record_loss))
        link = WorkerLink(self._session, roles, address, self._shared, tried, lost)
        try:
            await link.run()
        except (aiohttp.ClientError, TransferError, BundleError, OSError, TimeoutError) as error:
            named = " or ".join(sorted(roles))
            _log.info("link to %s worker %s: %s", named, address, str(error) or type(error).__name__)
        except Exception:  # noqa: BLE001 (the outermost loop of a worker's links: else nothing would dial it again)
            _log.exception("link to worker %s", address)
        if not link.was_linked:
            self._record_try(address)
        return link.was_linked


@dataclass(frozen=True, slots=True)
class _Shared:
    """The parts that all links of this process share."""

    table: WorkerTable
    listener: LinkListener
    keys: KeyDirectory
    party: Party
    times: LinkTimes
    texts: TextStore
    altered: AlteredFrames
    complaints: Complaints


class WorkerLink:
    """One life of one link."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        roles: frozenset[Role],
        address: Address,
        shared: _Shared,
        on_linked: Callable[[], None],
        on_lost: Callable[[], None],
    ) -> None:
        """`roles`: the roles under which the address was discovered."""
        self._session = session
        self._on_linked, self._on_lost = on_linked, on_lost
        self._roles = roles
        self._address = address
        self._table = shared.table
        self._listener = shared.listener
        self._keys = shared.keys
        self._party = shared.party
        self._times = shared.times
        self._texts = shared.texts
        self._altered = shared.altered
        self._complaints = shared.complaints
        self._bad = Flood()
        self._states = Flood("states", MOST_STATES, 1.0)
        self._outbox = LinkOutbox()
        self._is_open = False
        self.was_linked = False

    async def run(self) -> None:
        """Run until the link ends. Raises the error that ended it, after removing the worker and reporting its loss."""
        async with asyncio.timeout(self._times.setup_s) as setup:
            async with asyncio.timeout(HANDSHAKE_S):
                socket = await self._session.ws_connect(
                    f"http://{self._address}/link",
                    max_msg_size=MAX_SIGNED_BYTES,
                    compress=0,
                    autoclose=False,
                )
            try:
                epoch, session = await self._authenticate(socket)
                frames = SignedFrames(socket.send_bytes, lambda: _frame(socket), session)
                hello = await self._hello(frames, epoch)
                text = await self._text(frames, hello)
                setup.reschedule(None)
                await self._serve(socket, frames, hello, text)
            finally:
                await _close(socket)

    async def _authenticate(self, socket: aiohttp.ClientWebSocketResponse) -> tuple[bytes, Session]:
        """The epoch of the worker, which has proven that it holds our key, and the session with it."""

        async def receive(length: int) -> bytes:
            frame = await _frame(socket)
            if len(frame) != length:
                raise AuthenticationError(f"handshake: a frame of {len(frame)} bytes, expected {length}")
            return frame

        roles = tuple(LinkRole[role.name] for role in POOL_ROLES)
        identity, session = await dial_handshake(
            socket.send_bytes, receive, self._keys, self._party, accept_roles=roles, altered=self._altered
        )
        return identity.epoch, session

    async def _hello(self, frames: SignedFrames, epoch: bytes) -> Hello:
        hello = decode(await frames.receive(), ToGateway)
        if not isinstance(hello, Hello):
            raise BadMessageError(f"{type(hello).__name__} before Hello")
        if hello.epoch != epoch:
            raise BadMessageError("Hello: not the epoch that was proven")
        if hello.role not in self._roles and not hello.flips:  # one that flips may have flipped since it was found
            raise BadMessageError(
                f"Hello: a {hello.role} worker was found as {' and '.join(sorted(self._roles))} worker"
            )
        if hello.fingerprint.tokenizer != hello.bundle_hash:
            raise BadMessageError("Hello: the bundle is not the fingerprint's tokenizer")
        if (hello.pair_port is None) is (hello.flips or hello.role is Role.DECODE):
            raise BadMessageError("Hello: pair_port belongs to workers that decode what others prefilled")
        if (fault := find_hello_fault(hello)) is not None:
            raise BadMessageError(f"Hello: {fault}")
        return hello

    async def _text(self, frames: SignedFrames, hello: Hello) -> TextModel:
        data = bytearray()
        while len(data) < hello.bundle_bytes:
            message = decode(await frames.receive(), ToGateway)
            if isinstance(message, BundleChunk):
                if message.offset != len(data) or len(data) + len(message.data) > hello.bundle_bytes:
                    raise BundleError(f"bundle chunk at {message.offset} of {len(message.data)} bytes does not follow")
                data += message.data
        return await self._texts.load(bytes(data), hello.bundle_hash)

    async def _serve(
        self, socket: aiohttp.ClientWebSocketResponse, frames: SignedFrames, hello: Hello, text: TextModel
    ) -> None:
        worker = LinkedWorker(hello, self._address, text, self._send)
        if not self._table.add(worker):
            raise BadMessageError("this worker is linked already")
        self._is_open = self.was_linked = True
        self._on_linked()
        _log.info("linked %s worker %s epoch %s", hello.role, self._address, hello.epoch.hex()[:12])
        liveness = Liveness(self._times.liveness, _now())
        helpers = [
            asyncio.create_task(write_out(self._outbox, frames, self._times.heartbeat_s, self._listener.unsent)),
            asyncio.create_task(self._watch(socket, worker, liveness)),
        ]
        is_refusal = False
        try:
            self._listener.worker_changed()
            await self._read(frames, worker, liveness)
        except _RefusedByPeerError:
            is_refusal = True
            raise
        finally:
            self._is_open = False
            for helper in helpers:
                helper.cancel()
            self._on_lost()
            self._table.remove(hello.epoch)
            self._listener.worker_lost(hello.epoch, is_refusal)
            await asyncio.gather(*helpers, return_exceptions=True)

    async def _read(self, frames: SignedFrames, worker: LinkedWorker, liveness: Liveness) -> None:
        heard_s = _now()

        def note_life() -> None:
            nonlocal heard_s
            now = _now()
            liveness.heard(now)
            if now - heard_s >= SILENT_S:
                self._listener.worker_silent(worker.hello.epoch, heard_s, now)
            heard_s = now

        async def receive() -> bytes:
            while self._listener.is_behind:
                await asyncio.sleep(PAUSE_S)
                note_life()  # what is not read says nothing about the worker
            frame = await frames.receive(note_life)
            note_life()
            return frame

        await read_in_turns(receive, lambda frame: self._take(frame, worker))

    def _take(self, frame: bytes, worker: LinkedWorker) -> None:
        """Pass the message of one frame on. Raises BadMessageError."""
        try:
            message = decode(frame, ToGateway)
        except BadFieldsError as refusal:
            self._refuse(refusal, worker)
            return
        match message:
            case Tokens():
                self._listener.tokens(worker.hello.epoch, message)
            case PromptLogprobs():
                self._listener.prompt_logprobs(worker.hello.epoch, message)
            case EncodedPrompt():
                self._listener.encoded(worker.hello.epoch, message)
            case WorkerState():
                self._take_report(worker, message)
            case CachedPlaces():
                self._take_places(worker, message)
            case LegFailed():
                self._listener.leg_failed(worker.hello.epoch, message)

    def _refuse(self, refusal: BadFieldsError, worker: LinkedWorker) -> None:
        """Take the fitting entries of a message that does not fit: the other requests are retried elsewhere. Raises
        BadMessageError when this worker sent too many such messages."""
        self._bad.met(_now(), str(refusal))
        self._complaints.say("a worker's message is not taken", f"{worker.role} worker {self._address}: {refusal}")
        tokens, failed = salvage(refusal)
        if tokens is not None:
            self._listener.tokens(worker.hello.epoch, tokens)
        for leg in failed:
            self._send(Cancel(leg.request, leg.attempt))
            self._listener.leg_failed(worker.hello.epoch, leg)

    def _take_report(self, worker: LinkedWorker, report: WorkerState) -> None:
        self._states.met(_now())
        state, doubts = clamp_state(report, worker.hello)
        if doubts:
            self._complaints.say("a worker's state is implausible", f"{self._address}: {'; '.join(doubts)}")
        worker.has_implausible_load = bool(doubts)
        known, role, flip = worker.state, worker.role, worker.reported_flip
        worker.record_report(state)
        is_flipped = worker.role is not role
        if is_flipped:
            _log.info("worker %s is %s from flip %d on, was %s", self._address, worker.role, worker.reported_flip, role)
        if known is None or known.draining != state.draining or is_flipped:
            self._listener.worker_changed()
        if worker.reported_flip != flip:
            self._listener.worker_flipped()
        self._listener.worker_reported()

    def _take_places(self, worker: LinkedWorker, message: CachedPlaces) -> None:
        self._states.met(_now())
        reading = self._table.cached.take(worker.hello.epoch, message, _now())
        if reading.fault is not None:
            text = f"{worker.role} worker {self._address}: {reading.fault}"
            self._complaints.say("what a worker says of its cache is not believed", text)
        if reading.asks:
            self._send(AskCachedPlaces())

    def _send(self, message: ToWorker) -> bool:
        return self._is_open and self._outbox.put(message)

    async def _watch(self, socket: aiohttp.ClientWebSocketResponse, worker: LinkedWorker, liveness: Liveness) -> None:
        while True:
            await asyncio.sleep(min(self._times.liveness.suspect_s / 6, liveness.due_in(_now())))
            state = liveness.state(_now())
            if state is PeerState.DEAD:
                _log.warning("%s worker %s is silent: given up", worker.role, self._address)
                _abort(socket)
                return
            is_suspect = state is PeerState.SUSPECT
            if worker.is_suspect != is_suspect:
                worker.is_suspect = is_suspect
                (self._on_lost if is_suspect else self._on_linked)()  # requests may wait until it is decided
                self._listener.worker_changed()


async def read_in_turns(
    receive: Callable[[], Awaitable[bytes]],
    take: Callable[[bytes], None],
    clock: Callable[[], float] = time.perf_counter,
) -> Never:
    """Take frame after frame, and let other tasks run after `TURN_FRAMES` frames or `TURN_S` seconds of taking."""
    num_frames, spent_s = 0, 0.0
    while True:
        frame, num_frames = await receive(), num_frames + 1
        began_s = clock()
        take(frame)
        spent_s += clock() - began_s
        if num_frames >= TURN_FRAMES or spent_s >= TURN_S:
            await asyncio.sleep(0)
            num_frames, spent_s = 0, 0.0


def _now() -> float:
    return asyncio.get_running_loop().time()


class _RefusedByPeerError(ConnectionResetError):
    """The peer lives, and closed the link because of a message."""


async def _frame(socket: aiohttp.ClientWebSocketResponse) -> bytes:
    message = await socket.receive()
    if message.type is aiohttp.WSMsgType.CLOSE and message.data in REFUSAL_CODES:
        raise _RefusedByPeerError(f"the worker ended the link: {message.extra or 'no reason given'}")
    if message.type is not aiohttp.WSMsgType.BINARY:
        raise ConnectionResetError(f"the link ended ({message.type.name})")
    data: bytes = message.data
    return data


def _abort(socket: aiohttp.ClientWebSocketResponse) -> None:
    """Reset the connection without a handshake, because the peer may be stopped or unreachable."""
    connection = socket._response.connection
    reset(None if connection is None else connection.transport)


async def _close(socket: aiohttp.ClientWebSocketResponse) -> None:
    try:
        async with asyncio.timeout(0.2):
            await socket.close()
    except TimeoutError:
        _abort(socket)
