"""A worker without an engine, in process: real handshake, real messages over real WebSockets, tokens by script.

Hand-overs always succeed unless set otherwise. What a sequence draws is `script(fake request)`: the ids of the whole
generation, by index, so that a migrated request goes on where it was.
"""

from __future__ import annotations

import asyncio
import heapq
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import WSMsgType, web

from baton_testing.gateway.made_tokenizers import MadeTokenizer, bundle_hash
from baton_wire.handshake import LinkRole, Party, accept_handshake
from baton_wire.keys import KeyDirectory
from baton_wire.messages.codec import decode, encode
from baton_wire.messages.encoding import Encode, EncodedPrompt, EncodingKind, EncodingLimits, pack_floats
from baton_wire.messages.gateway_link import (
    AskCachedPlaces,
    BundleChunk,
    CachedPlaces,
    Cancel,
    Flip,
    Heartbeat,
    Hello,
    Holding,
    LegFailed,
    Prefill,
    PromptLogprobs,
    Reserve,
    Retarget,
    ToGateway,
    Tokens,
    ToWorker,
    WorkerState,
)
from baton_wire.messages.measures import StepTiming
from baton_wire.messages.packed_logprobs import pack_logprobs
from baton_wire.messages.values import (
    MAX_FRAME_BYTES,
    WIRE_VERSION,
    Finish,
    PairFingerprint,
    PromptLogprob,
    Reason,
    Role,
    SamplingParams,
    TokenEntry,
    TokenLogprob,
    num_packed,
    unpack_ids,
)
from baton_wire.rules.fair_share import StartTags
from baton_wire.session import MAX_SIGNED_BYTES, AlteredFrames, FrameParts, Session, parts

Key = tuple[bytes, int]
ROWS_IN_A_ROW = 32
"""Sequences of a step after which other tasks run: in a deployment the other worker is another process."""


@dataclass(frozen=True)
class FakeRequest:
    """The request that a script decides by."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    choice: int


Script = Callable[[FakeRequest], list[int]]


@dataclass
class Sequence:
    """One choice at work on a decode worker."""

    key: Key
    choice: int
    ids: list[int]
    index: int
    sampling: SamplingParams
    link: web.WebSocketResponse


class PromptLine:
    """Prompts that wait for a worker, in the fair turns of their flows."""

    def __init__(self) -> None:
        self._turns = StartTags()
        self._waiting: list[tuple[float, int, web.WebSocketResponse, Prefill]] = []
        self._num_added = 0
        self._changed = asyncio.Event()

    def add(self, link: web.WebSocketResponse, message: Prefill) -> None:
        tag = self._turns.opened(message.flow or message.request, float(num_packed(message.tokens)))
        self._num_added += 1
        heapq.heappush(self._waiting, (tag, self._num_added, link, message))
        self._changed.set()

    def cancel(self, key: Key) -> None:
        """Drop a prompt that waits."""
        for place, (_, _, _, message) in enumerate(self._waiting):
            if (message.request, message.attempt) == key:
                del self._waiting[place]
                heapq.heapify(self._waiting)
                self._turns.closed(message.flow or message.request)
                return

    async def take(self) -> tuple[web.WebSocketResponse, Prefill]:
        """Take the next prompt, once there is one."""
        while not self._waiting:
            self._changed.clear()
            await self._changed.wait()
        tag, _, link, message = heapq.heappop(self._waiting)
        self._turns.began(tag, float(num_packed(message.tokens)))
        self._turns.closed(message.flow or message.request)
        return link, message


@dataclass
class FakeWorker:
    """One worker process, as the gateway sees it. Attributes may be set at any time to change what it does."""

    role: Role
    tokenizer: MadeTokenizer
    keys: KeyDirectory
    script: Script
    served_name: str = "tiny"
    max_context_tokens: int = 2_048
    block_tokens: int = 16
    blocks_total: int = 1_024
    max_sequences: int = 256
    step_s: float = 0.0
    waiting_tokens: int = 0
    timings: tuple[StepTiming, ...] = ()
    """Values of its reported load."""
    tokens_per_step: int = 1
    cached_tokens: int | None = None
    """The value that it reports with each prompt's first token."""
    device_s: float | None = None
    """The seconds of its steps that it reports for each token of a choice; None: it reports none."""
    model_hash: str = "ab" * 32
    encoding: EncodingLimits | None = None
    """With it the worker encodes prompts (`encoded_values`)."""
    spoils_values: bytes | None = None
    """Sent once in place of the next result."""
    flips: bool = False
    flip: int = 0
    """The number of its last flip; with `flips`, it takes the role of an order."""
    epoch: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    received: list[Prefill | Reserve | Encode | Retarget | Cancel] = field(default_factory=list)
    fail_next: list[Reason] = field(default_factory=list)
    """Reasons with which the next accepted legs fail at once."""
    asked_for_places: int = 0
    takes_turns: bool = False
    """Prompts wait in a line, in fair turns of flows as at a real worker, and a step lets them in between."""
    silent: bool = False
    """Reads, sends nothing: a process that was stopped."""
    is_mute_about_prompts: bool = False
    """Never sends log probabilities of prompts' own tokens."""
    hold: bool = False
    """Accepts legs and produces nothing."""
    may_step: Callable[[int], bool] = lambda _last_step: True
    """Asked with the number of the last step before each one."""
    peer: FakeWorker | None = None
    """Whom a prefill worker hands over to, found by epoch in the pool."""
    pool: list[FakeWorker] = field(default_factory=list)
    running: dict[tuple[Key, int], Sequence] = field(default_factory=dict)
    reserved: dict[Key, tuple[Reserve, web.WebSocketResponse]] = field(default_factory=dict)
    port: int = 0
    _links: dict[web.WebSocketResponse, Session] = field(default_factory=dict)
    _runner: web.AppRunner | None = None
    _steps: int = 0
    _stepping: asyncio.Task[None] | None = None
    _handing_over: set[asyncio.Task[None]] = field(default_factory=set)
    _line: PromptLine = field(default_factory=lambda: PromptLine())
    _serving_line: asyncio.Task[None] | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/link", self._serve)
        app.router.add_get("/state", self._tell_state)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = int(self._runner.addresses[0][1])
        self._stepping = asyncio.create_task(self._step_forever())
        if self.takes_turns:
            self._serving_line = asyncio.create_task(self._serve_line())

    async def stop(self) -> None:
        """Like kill -9: links are cut, everything is forgotten."""
        for task in (self._stepping, self._serving_line):
            if task is not None:
                task.cancel()
        self.cut()
        self.running.clear()
        self.reserved.clear()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def cut(self) -> None:
        """Every link breaks; the process goes on and takes new ones."""
        for link in list(self._links):
            transport = link._req.transport if link._req is not None else None
            if transport is not None:
                transport.abort()

    async def restart(self) -> None:
        """Another process at the same address."""
        await self.stop()
        self.epoch = secrets.token_bytes(16)
        await self.start()

    @property
    def is_idle(self) -> bool:
        return not self.running and not self.reserved

    def encodes(self) -> list[Encode]:
        return [message for message in self.received if isinstance(message, Encode)]

    def of_type(
        self, kind: type[Prefill | Reserve | Retarget | Cancel]
    ) -> list[Prefill | Reserve | Encode | Retarget | Cancel]:
        return [message for message in self.received if isinstance(message, kind)]

    # The link ---------------------------------------------------------------------------------------------------------

    def hello(self) -> Hello:
        bundle = self.tokenizer.bundle()
        digest = bundle_hash(bundle)
        fingerprint = PairFingerprint(WIRE_VERSION, self.model_hash, "float32", "float32", 2, 2, 8, "cd" * 32, digest)
        return Hello(
            role=self.role,
            epoch=self.epoch,
            fingerprint=fingerprint,
            template_hash="t1",
            pair_port=7_000 if self.flips or self.role is Role.DECODE else None,
            served_name=self.served_name,
            vocab_size=self.tokenizer.tokenizer.get_vocab_size(),
            max_context_tokens=self.max_context_tokens,
            max_choices=16,
            max_sequences=self.max_sequences,
            block_tokens=self.block_tokens,
            blocks_total=self.blocks_total,
            bundle_hash=digest,
            bundle_bytes=len(bundle),
            flips=self.flips,
            encoding=self.encoding,
        )

    def state(self, draining: bool = False) -> WorkerState:
        return WorkerState(
            draining, len(self.running), 0, self.waiting_tokens, self.blocks_total, 0, self._steps, self.step_s,
            timings=self.timings, role=self.role if self.flips else None, flip=self.flip,
        )  # fmt: skip

    async def _tell_state(self, request: web.Request) -> web.Response:
        """For gateways in other processes."""
        return web.json_response({"running": len(self.running), "reserved": len(self.reserved)})

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        link = web.WebSocketResponse(max_msg_size=MAX_SIGNED_BYTES)
        await link.prepare(request)

        async def receive(length: int) -> bytes:
            data: bytes = await link.receive_bytes()
            return data

        role = LinkRole[self.role.name]
        _, session = await accept_handshake(
            link.send_bytes,
            receive,
            self.keys,
            Party(role, self.epoch),
            accept_roles=(LinkRole.GATEWAY,),
            altered=AlteredFrames(),
        )
        self._links[link] = session
        beating = asyncio.create_task(self._beat(link))
        try:
            await self._greet(link)
            received = FrameParts(MAX_FRAME_BYTES)
            async for part in link:
                if part.type is not WSMsgType.BINARY:
                    continue
                frame = received.add(session.verify(part.data))
                if frame is not None:
                    await self._take(link, decode(frame, ToWorker))
        finally:
            beating.cancel()
            self._links.pop(link, None)
            self._forget(link)
        return link

    async def _greet(self, link: web.WebSocketResponse) -> None:
        bundle = self.tokenizer.bundle()
        await self.send(link, self.hello())
        size = min(len(bundle) // 2, 1 << 20)
        for offset in range(0, len(bundle), size):
            await self.send(link, BundleChunk(offset, bundle[offset : offset + size]))
        await self.send(link, self.state())

    async def report(self, draining: bool = False) -> None:
        for link in list(self._links):
            await self.send(link, self.state(draining))

    async def announce_places(self, *messages: CachedPlaces) -> None:
        """Tell all gateways of the prefix cache."""
        for link in list(self._links):
            for message in messages:
                await self.send(link, message)

    async def send(self, link: web.WebSocketResponse, message: ToGateway) -> None:
        await self.send_frame(link, encode(message))

    async def send_frame(self, link: web.WebSocketResponse, frame: bytes) -> None:
        """Also what no message class allows."""
        for part in parts(frame):
            if not self.silent and not link.closed and link in self._links:
                try:
                    await link.send_bytes(self._links[link].sign(part))
                except ConnectionError:
                    self._forget(link)

    async def _beat(self, link: web.WebSocketResponse) -> None:
        while True:
            await asyncio.sleep(0.2)
            await self.send(link, Heartbeat())

    def _forget(self, link: web.WebSocketResponse) -> None:
        for place in [place for place, sequence in self.running.items() if sequence.link is link]:
            del self.running[place]
        for key in [key for key, (_, owner) in self.reserved.items() if owner is link]:
            del self.reserved[key]

    # Work -------------------------------------------------------------------------------------------------------------

    async def _take(self, link: web.WebSocketResponse, message: ToWorker) -> None:
        if isinstance(message, Heartbeat | Holding):
            return
        if isinstance(message, AskCachedPlaces):
            self.asked_for_places += 1
            return
        if isinstance(message, Flip):
            self.flip, self.role = message.number, message.role
            await self.report()
            return
        self.received.append(message)
        key = (message.request, message.attempt)
        if isinstance(message, Cancel):
            self._cancel(key, message.choice)
        elif isinstance(message, Retarget):
            await self.send(link, LegFailed(message.request, message.next_attempt, Reason.UNKNOWN_REQUEST, "not kept"))
        elif self.fail_next:
            await self.send(link, LegFailed(*key, self.fail_next.pop(0), "scripted"))
        elif isinstance(message, Reserve):
            self.reserved[key] = (message, link)
            if message.prefill_epoch is None:
                self.land(key, {})
        elif self.takes_turns and isinstance(message, Prefill):
            self._line.add(link, message)
        elif not self.hold:
            await (self._encode if isinstance(message, Encode) else self._prefill)(link, message)  # type: ignore[arg-type]

    async def _encode(self, link: web.WebSocketResponse, message: Encode) -> None:
        assert self.encoding is not None
        values, self.spoils_values = self.spoils_values, None
        if values is None:
            values = pack_floats(encoded_values(unpack_ids(message.tokens), message, self.encoding))
        await self.send(link, EncodedPrompt(message.request, message.attempt, values))

    async def _serve_line(self) -> None:
        while True:
            link, message = await self._line.take()
            if link in self._links and not self.hold:
                await self._prefill(link, message)
            await asyncio.sleep(0)

    def _cancel(self, key: Key, choice: int | None) -> None:
        if choice is None:
            self._line.cancel(key)
            self.reserved.pop(key, None)
        for place in [place for place in self.running if place[0] == key and choice in (None, place[1])]:
            del self.running[place]

    async def _prefill(self, link: web.WebSocketResponse, message: Prefill) -> None:
        await self._tell_prompt(link, message)
        sequences = self._sequences(message, link)
        entries = tuple(self._entry(sequence, 1) for sequence in sequences)
        self._steps += 1
        await self.send(link, Tokens(self._steps, entries))
        landed = {sequence.choice: entry for sequence, entry in zip(sequences, entries, strict=True)}
        decode_worker = next((worker for worker in self.pool if worker.epoch == message.decode.epoch), None)
        if decode_worker is not None:
            task = asyncio.create_task(_hand_over(decode_worker, (message.request, message.attempt), landed))
            self._handing_over.add(task)
            task.add_done_callback(self._handing_over.discard)

    async def _tell_prompt(self, link: web.WebSocketResponse, message: Prefill) -> None:
        """Log probabilities of the prompt's tokens, in two messages: those of place p are -p, its rank is p."""
        k, tokens = message.sampling.prompt_logprobs, unpack_ids(message.tokens)
        if k is None or self.is_mute_about_prompts or len(tokens) > message.prompt_tokens:
            return
        scores = [
            PromptLogprob(-float(place), place, tuple((token + rank, -float(place) - rank) for rank in range(k)))
            for place, token in enumerate(tokens)
        ][1:]
        half = len(scores) // 2
        for first, part in ((0, scores[:half]), (half, scores[half:])):
            if part:
                await self.send(link, PromptLogprobs(message.request, message.attempt, 1 + first, tuple(part)))

    def land(self, key: Key, first: dict[int, TokenEntry]) -> None:
        """The KV has landed: go on after the first tokens, which are repeated."""
        reserved = self.reserved.pop(key, None)
        if reserved is None:
            return
        message, link = reserved
        for sequence in self._sequences(message, link):
            entry = first.get(sequence.choice)
            if entry is None or entry.finish is None:
                self.running[key, sequence.choice] = sequence

    def _sequences(self, message: Prefill | Reserve, link: web.WebSocketResponse) -> list[Sequence]:
        tokens = unpack_ids(message.tokens)
        prompt = tuple(tokens[: message.prompt_tokens])
        start = len(tokens) - message.prompt_tokens
        return [
            Sequence(
                key=(message.request, message.attempt),
                choice=choice,
                ids=self.script(FakeRequest(prompt, message.sampling, choice)),
                index=start,
                sampling=message.sampling,
                link=link,
            )
            for choice in message.choices
        ]

    def _entry(self, sequence: Sequence, count: int) -> TokenEntry:
        """The next `count` tokens, or fewer when one of them is the last."""
        first = sequence.index
        ids: list[int] = []
        finish: Finish | None = None
        while len(ids) < count and finish is None:
            place = sequence.index
            token = sequence.ids[place] if place < len(sequence.ids) else self.tokenizer.eos_id
            ids.append(token)
            sequence.index += 1
            if token in sequence.sampling.stop_token_ids and place >= sequence.sampling.min_tokens:
                finish = Finish.STOP
            elif sequence.index == sequence.sampling.max_tokens:
                finish = Finish.LENGTH
        logprobs = _logprobs(ids, sequence.sampling.logprobs, self.tokenizer.tokenizer.get_vocab_size())
        cached = self.cached_tokens if first == 0 else None
        times = None, None if self.device_s is None else self.device_s * sequence.index
        return TokenEntry(*sequence.key, sequence.choice, first, tuple(ids), logprobs, finish, cached, *times)

    async def _step_forever(self) -> None:
        clock = asyncio.get_running_loop().time
        due_s = clock()
        while True:
            due_s = max(due_s + (self.step_s or 0.001), clock())
            await asyncio.sleep(due_s - clock())
            if not self.hold and not self.silent and self.may_step(self._steps):
                await self._step()

    async def _step(self) -> None:
        by_link: dict[web.WebSocketResponse, list[TokenEntry]] = {}
        for number, (place, sequence) in enumerate(list(self.running.items())):
            if self.takes_turns and number % ROWS_IN_A_ROW == ROWS_IN_A_ROW - 1:
                await asyncio.sleep(0)
            if place not in self.running:
                continue
            entry = self._entry(sequence, self.tokens_per_step)
            by_link.setdefault(sequence.link, []).append(entry)
            if entry.finish is not None:
                del self.running[place]
        if by_link:
            self._steps += 1
        for link, entries in by_link.items():
            await self.send(link, Tokens(self._steps, tuple(entries)))


def encoded_values(tokens: list[int], message: Encode, limits: EncodingLimits) -> list[float]:
    """The made-up result: the count of the prompt's tokens, then its last token ids."""
    output = message.output
    if output.kind is EncodingKind.EMBEDDING:
        width = output.dimensions or limits.width
        return [float(len(tokens)), *map(float, [*reversed(tokens), *[0] * width])][:width]
    if output.kind is EncodingKind.LABELS:
        return [len(tokens) / 8 - place for place in range(limits.labels)]
    return [0.0, len(tokens) / 8]


async def _hand_over(decode_worker: FakeWorker, key: Key, first: dict[int, TokenEntry]) -> None:
    """Land the KV once there is a reservation for it."""
    for _ in range(200):
        if key in decode_worker.reserved:
            break
        await asyncio.sleep(0.005)
    decode_worker.land(key, first)


def _logprobs(ids: list[int], k: int | None, vocab_size: int) -> bytes | None:
    if k is None:
        return None
    return pack_logprobs(
        tuple(
            TokenLogprob(-0.25, tuple(((token + rank) % vocab_size, -0.25 - rank) for rank in range(k)))
            for token in ids
        )
    )
