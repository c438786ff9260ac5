"""A prefill and two decode workers of several ranks over real sockets, and trouble at random instants.

Requests go through the production transfers: prompts are computed in chunks, links are cut from either side, a decode
worker is killed, requests are cancelled, and KV is retargeted to the other decode worker. Every request must end once
at each side, and KV that landed must be what was computed, at every rank.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from baton_kv_transfer.decode.transfer import DecodeTransfer, LandingMemory
from baton_kv_transfer.handover import Reservation
from baton_kv_transfer.prefill.transfer import PrefillTransfer
from baton_kv_transfer.ranks.tensor_parallel import heads_of, rank_geometries
from baton_kv_transfer.transfer_parts import TransferParts
from baton_testing.kv_transfer.builders import FAST, FakePool, eventually, fingerprint, first_tokens, heads_from
from baton_wire.keys import KeyDirectory
from baton_wire.kv_shape import KvGeometry
from baton_wire.messages.pair_link import FirstToken
from baton_wire.messages.values import Address, PeerRef, Reason, RequestKey

CONFIG = replace(FAST, kept_s=1.0, link_wait_s=2.0, group_bytes=256, max_put_bytes=1024)
MOST_TOKENS = 60
REQUESTS = 8
GRAIN = 16
DEADLINE_S = 120.0
"""Far more than a run takes, on a machine that others use too."""
EXPECTED_ENDS = {
    Reason.CANCELLED,
    Reason.PEER_LOST,
    Reason.DRAINING,
    Reason.UNKNOWN_REQUEST,
}
"""Anything else is a fault of the hand-over: KV that does not fit, a message that was refused, an error inside."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Ranks of the prefill worker and of both decode workers, and the model's KV heads."""

    prefill: int
    decode: tuple[int, int]
    kv_heads: int
    element_bytes: int = 2


@dataclass(frozen=True, slots=True)
class Troubles:
    """Chances for each request, and numbers for the run."""

    cancels: float = 0.2
    retargets: float = 0.2
    cuts: int = 3
    kills: int = 1
    most_pause_s: float = 0.004


@dataclass
class Tally:
    landed: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    troubles: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        self.landed += other.landed
        self.ends += other.ends
        self.troubles += other.troubles


class DecodeSide:
    """A decode worker, and how each of its reservations ended."""

    def __init__(
        self,
        shape: Shape,
        ranks: int,
        geometry: KvGeometry,
        keys: KeyDirectory,
        epoch: bytes,
        on_lost: Callable[[RequestKey], None],
    ) -> None:
        self.on_lost = on_lost
        self.epoch, self.next_block, self.is_alive = epoch, 0, True
        shapes = rank_geometries(geometry, ranks)
        most_blocks = -(-MOST_TOKENS // geometry.block_tokens)
        self.pools = [FakePool(pool, 2 * REQUESTS * most_blocks) for pool in shapes]
        self.ends: dict[RequestKey, Reason | None] = {}
        self.faults: list[str] = []
        landing = LandingMemory(2 * ranks * most_blocks * max(256, shapes[0].block_bytes))
        model = fingerprint(kv_heads=shape.kv_heads)
        parts = TransferParts(epoch=epoch, fingerprint=model, geometry=geometry, keys=keys, config=CONFIG)
        self.transfer = DecodeTransfer(parts, self.pools, self, landing, host="127.0.0.1")

    @property
    def ref(self) -> PeerRef:
        return PeerRef(address=Address(host="127.0.0.1", port=self.transfer.port), epoch=self.epoch)

    def take(self, tokens: int) -> tuple[int, ...]:
        """Blocks that no other reservation has or had."""
        count = -(-tokens // self.pools[0].geometry.block_tokens)
        first, self.next_block = self.next_block, self.next_block + count
        return tuple(range(first, first + count))

    def on_landed(self, key: RequestKey, first_tokens: tuple[FirstToken, ...]) -> None:
        self._ended(key, None, "")

    def on_failed(self, key: RequestKey, reason: Reason, detail: str) -> None:
        self._ended(key, reason, detail)

    def _ended(self, key: RequestKey, reason: Reason | None, detail: str) -> None:
        if key in self.ends or (reason is not None and reason not in EXPECTED_ENDS):
            self.faults.append(f"{key} ended with {reason}: {detail}, before {self.ends.get(key)}")
        self.ends[key] = reason
        if reason not in (None, Reason.CANCELLED):
            self.on_lost(key)


@dataclass
class Prompt:
    """A request of the prefill worker."""

    id: bytes
    tokens: int
    cached: int
    source: tuple[int, ...]
    truth: list[bytes]
    """KV of each token."""
    attempts: list[tuple[RequestKey, DecodeSide, tuple[int, ...]]] = field(default_factory=list)
    is_cancelled: bool = False

    @property
    def key(self) -> RequestKey:
        return RequestKey(self.id, 1)


class TroubledFleet:
    """One run of a seed."""

    def __init__(self, seed: int, shape: Shape, troubles: Troubles, keys: KeyDirectory) -> None:
        self.random = random.Random(f"{seed} {shape}")
        self.shape, self.troubles, self.tally = shape, troubles, Tally()
        self.geometry = KvGeometry(4, shape.kv_heads, 4, shape.element_bytes, self.random.choice((4, 8)))
        self.pools = [FakePool(pool, 128) for pool in rank_geometries(self.geometry, shape.prefill)]
        self.epoch = self.random.randbytes(16)
        self.prompts: dict[bytes, Prompt] = {}
        self.released: Counter[RequestKey] = Counter()
        self.faults: list[str] = []
        model = fingerprint(kv_heads=shape.kv_heads)
        parts = TransferParts(epoch=self.epoch, fingerprint=model, geometry=self.geometry, keys=keys, config=CONFIG)
        self.transfer = PrefillTransfer(parts, self.pools, self)
        self.decodes = [self._decode(ranks, keys) for ranks in shape.decode]

    def _decode(self, ranks: int, keys: KeyDirectory) -> DecodeSide:
        geometry = replace(self.geometry, block_tokens=self.random.choice((4, 8, GRAIN)))
        return DecodeSide(self.shape, ranks, geometry, keys, self.random.randbytes(16), self._lost_at_decode)

    async def run(self) -> Tally:
        await self.transfer.start()
        for decode in self.decodes:
            await decode.transfer.start()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._make_trouble())
                for number in range(REQUESTS):
                    group.create_task(self._live(self._prompt(number)))
            await eventually(self._is_quiet, timeout_s=DEADLINE_S)
            self._check()
        finally:
            await self.transfer.stop()
            for decode in self.decodes:
                await decode.transfer.stop()
        return self.tally

    # A request --------------------------------------------------------------------------------------------------------

    def _prompt(self, number: int) -> Prompt:
        tokens, size = self.random.randint(1, MOST_TOKENS), self.geometry.block_tokens
        cached = self.random.choice((0, 0, tokens // 2)) // GRAIN * GRAIN
        count = -(-MOST_TOKENS // size)
        source = tuple(self.random.sample(range(number * count, (number + 1) * count), -(-tokens // size)))
        whole = FakePool(self.geometry, len(source))
        whole.random_bytes = self.random.randbytes
        whole.fill(range(len(source)))
        for rank, pool in enumerate(self.pools):
            heads = heads_of(self.shape.kv_heads, len(self.pools), rank)
            for at, block in enumerate(source):
                first = block * pool.geometry.block_bytes
                data = heads_from(whole.block(at), self.geometry, heads)
                pool.memory[first : first + len(data)] = data
        truth = whole.tokens(range(len(source)), 0, tokens)
        prompt = Prompt(self.random.randbytes(16), tokens, cached, source, truth)
        self.prompts[prompt.id] = prompt
        return prompt

    async def _live(self, prompt: Prompt) -> None:
        await self._pause(8)
        decode = self.random.choice(self.decodes)
        sides = ["prefill", "decode"]
        self.random.shuffle(sides)
        for side in sides:
            if side == "prefill":
                self.transfer.opened(prompt.key, decode.ref, prompt.tokens, time.monotonic() + DEADLINE_S)
            else:
                self._expect(prompt, 1, decode)
            await self._pause()
        await asyncio.gather(self._compute(prompt), self._interfere(prompt))

    def _expect(self, prompt: Prompt, attempt: int, decode: DecodeSide) -> None:
        key, blocks = RequestKey(prompt.id, attempt), decode.take(prompt.tokens)
        prompt.attempts.append((key, decode, blocks))
        reservation = Reservation(prompt.tokens, prompt.cached, blocks, (0,), time.monotonic() + DEADLINE_S)
        decode.transfer.expected(key, self.epoch, reservation)

    async def _compute(self, prompt: Prompt) -> None:
        size, done = self.geometry.block_tokens, 0
        while done < prompt.tokens:
            done = min(prompt.tokens, done + self.random.randint(1, 20))
            blocks = prompt.source[: -(-done // size)]
            for rank in self.random.sample(range(len(self.pools)), self.random.randint(0, len(self.pools))):
                self.transfer.computing(prompt.key, done, self.random.randint(1, 3), blocks, rank)
            await self._pause()
            self.transfer.computed(prompt.key, done, blocks)
        self.transfer.first_tokens(prompt.key, first_tokens(0))

    async def _interfere(self, prompt: Prompt) -> None:
        await self._pause(3)
        if self.random.random() < self.troubles.retargets:
            self.tally.troubles["retargeted"] += 1
            key, decode, _ = prompt.attempts[-1]
            decode.transfer.cancelled(key)
            self._retarget(prompt)
        await self._pause(3)
        if self.random.random() < self.troubles.cancels:
            self._cancel(prompt)

    def _cancel(self, prompt: Prompt) -> None:
        self.tally.troubles["cancelled"] += 1
        prompt.is_cancelled = True
        sides = self.random.choice((("prefill",), ("decode",), ("prefill", "decode")))
        if "prefill" in sides:
            self.transfer.cancelled(prompt.key)
        if "decode" in sides:
            key, decode, _ = prompt.attempts[-1]
            decode.transfer.cancelled(key)

    def _retarget(self, prompt: Prompt) -> None:
        others = [decode for decode in self.decodes if decode.is_alive and decode is not prompt.attempts[-1][1]]
        if len(prompt.attempts) > 1 or not others:  # the pools have blocks for two attempts of each request
            self.transfer.cancelled(prompt.key)
            return
        self.transfer.retargeted(prompt.key, 2, others[0].ref, time.monotonic() + DEADLINE_S)
        self._expect(prompt, 2, others[0])

    # The prefill worker's reports -------------------------------------------------------------------------------------

    def on_granted(self, key: RequestKey) -> None:
        if self.released[key]:
            self.faults.append(f"{key} is granted after its release")

    def on_release(self, key: RequestKey) -> None:
        """The blocks are another request's from now on: what is read late is not what was computed."""
        self.released[key] += 1
        prompt = self.prompts[key.request]
        for pool in self.pools:
            pool.fill(prompt.source)

    def on_report(self, key: RequestKey, reason: Reason, detail: str, failed_attempt: int, kept: bool) -> None:
        if reason not in EXPECTED_ENDS:
            self.faults.append(f"prefill reports {reason} of {key}: {detail}")
        self.tally.ends[f"reported {reason}"] += 1
        prompt = self.prompts[key.request]
        last, decode, _ = prompt.attempts[-1] if prompt.attempts else (key, None, ())
        if decode is not None and last.attempt == failed_attempt:
            decode.transfer.cancelled(last)
            if kept and not prompt.is_cancelled:
                self.tally.troubles["kept"] += 1
                self._retarget(prompt)

    def _lost_at_decode(self, key: RequestKey) -> None:
        """As the gateway does when the decode worker reports a failure: the KV goes elsewhere, or is given up."""
        prompt = self.prompts[key.request]
        if prompt.attempts[-1][0] == key and not prompt.is_cancelled:
            self._retarget(prompt)

    # Trouble ----------------------------------------------------------------------------------------------------------

    async def _make_trouble(self) -> None:
        events = ["cut"] * self.troubles.cuts + ["kill"] * self.troubles.kills
        self.random.shuffle(events)
        for event in events:
            await self._pause(6)
            decode = self.random.choice(self.decodes)
            if event == "cut":
                self._cut(decode)
            elif all(decode.is_alive for decode in self.decodes):
                decode.is_alive = False
                self.tally.troubles["killed"] += 1
                await decode.transfer._acceptor.stop()

    def _cut(self, decode: DecodeSide) -> None:
        self.tally.troubles["cut"] += 1
        if self.random.random() < 0.5:
            self.transfer._dialler.cut(decode.epoch, "cut by the test")
        else:
            decode.transfer._acceptor.cut(self.epoch, "cut by the test")

    async def _pause(self, times: int = 1) -> None:
        await asyncio.sleep(self.random.uniform(0, times * self.troubles.most_pause_s))

    # The end ----------------------------------------------------------------------------------------------------------

    def _is_quiet(self) -> bool:
        expected = [(key, decode) for prompt in self.prompts.values() for key, decode, _ in prompt.attempts]
        over = all(key in decode.ends for key, decode in expected)
        return over and all(self.released[prompt.key] for prompt in self.prompts.values())

    def _check(self) -> None:
        faults = [*self.faults, *(fault for decode in self.decodes for fault in decode.faults)]
        assert not faults, faults
        for prompt in self.prompts.values():
            assert self.released[prompt.key] == 1
            ends = [decode.ends[key] for key, decode, _ in prompt.attempts]
            assert ends.count(None) <= 1, f"{prompt.id.hex()} landed twice"
            if self.troubles == Troubles(cancels=0.0, retargets=0.0, cuts=0, kills=0):
                assert ends == [None]
            for end, (_, decode, blocks) in zip(ends, prompt.attempts, strict=True):
                self.tally.ends[end or "landed"] += 1
                if end is None:
                    self.tally.landed += 1
                    self._compare(prompt, decode, blocks)
        for decode in self.decodes:
            assert sum(decode.transfer._handovers.stats().by_state.values()) == 0
        stats = self.transfer._handovers.stats()
        assert sum(stats.by_state.values()) == stats.puts_in_flight == 0, stats

    def _compare(self, prompt: Prompt, decode: DecodeSide, blocks: Sequence[int]) -> None:
        for rank, pool in enumerate(decode.pools):
            heads = heads_of(self.shape.kv_heads, len(decode.pools), rank)
            mine = [heads_from(token, self.geometry, heads) for token in prompt.truth[prompt.cached :]]
            assert pool.tokens(blocks, prompt.cached, prompt.tokens) == mine, f"decode rank {rank}"
