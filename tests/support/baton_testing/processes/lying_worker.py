"""A worker that has the key and means harm: it repeats a real one's Hello, boasts of room, and fails what it gets.

It never says a token of a request that it was given: such a token would be believed, as a worker's tokens are.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from pathlib import Path

import msgpack
import msgspec
from aiohttp import web

from baton_testing.background_tasks import cancel
from baton_testing.gateway.fake_worker import FakeWorker
from baton_testing.gateway.made_tokenizers import MadeTokenizer, byte_level
from baton_testing.wire.raw_peer import gateway_peer
from baton_wire.keys import KeyDirectory
from baton_wire.messages.gateway_link import (
    AskCachedPlaces,
    BundleChunk,
    Cancel,
    Flip,
    Heartbeat,
    Hello,
    Holding,
    LegFailed,
    ToGateway,
    Tokens,
    ToWorker,
    WorkerState,
)
from baton_wire.messages.values import Finish, Reason, Role, TokenEntry

REPORT_S = 0.1
RETRIED = (Reason.DRAINING, Reason.NO_CAPACITY, Reason.PEER_LOST, Reason.KV_CORRUPT, Reason.INTERNAL, Reason.STALLED)
MOST = (1 << 31) - 1


class _Copied(MadeTokenizer):
    """Another worker's bundle."""

    def __init__(self, bundle: bytes) -> None:
        tokenizer = byte_level()
        super().__init__(tokenizer.tokenizer, tokenizer.config)
        object.__setattr__(self, "_copy", bundle)

    def bundle(self) -> bytes:
        copy: bytes = self.__dict__["_copy"]
        return copy


class LyingWorker(FakeWorker):
    """As `liar_like` makes it."""

    def __init__(self, role: Role, copied: Hello, bundle: bytes, keys: KeyDirectory, draw: random.Random) -> None:
        super().__init__(role, _Copied(bundle), keys, lambda request: [])
        self._copied, self._draw, self._steps_reported = copied, draw, 0
        self._lying: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await super().start()
        self._lying = asyncio.create_task(self._lie())

    async def stop(self) -> None:
        try:
            await cancel([] if self._lying is None else [self._lying])
        finally:
            await super().stop()

    def hello(self) -> Hello:
        return msgspec.structs.replace(self._copied, epoch=self.epoch)

    def state(self, draining: bool = False) -> WorkerState:
        """Idle, with all the room there is; or with as much work as a message can report."""
        boasts = self._draw.random() < 0.9
        count = 0 if boasts else self._draw.choice((1, 10_000_000, MOST))
        free = self._copied.blocks_total if boasts else 0
        self._steps_reported += self._draw.choice((0, 1, 1 << 20))
        return WorkerState(
            False, count, count, count, free, 0, self._steps_reported % MOST, self._draw.choice((0.0, 9.0))
        )

    async def send(self, link: web.WebSocketResponse, message: ToGateway) -> None:
        """Also what its receiver refuses: a liar does not check its own fields."""
        fields = msgspec.to_builtins(message, builtin_types=(bytes,))
        await self.send_frame(link, msgpack.packb(fields, use_bin_type=True))

    async def _lie(self) -> None:
        while True:
            await asyncio.sleep(REPORT_S)
            await self.report()
            for link in list(self._links):
                if self._draw.random() < 0.2:
                    cached = MOST if self._draw.random() < 0.05 else 3  # the one ends the link, the other does not
                    foreign = TokenEntry(secrets.token_bytes(16), 1, 0, 0, (5, 6, 7), None, Finish.STOP, cached)
                    await self.send(link, Tokens(self._steps_reported % MOST, (foreign,)))

    async def _take(self, link: web.WebSocketResponse, message: ToWorker) -> None:
        if not isinstance(message, Heartbeat | Holding | AskCachedPlaces | Flip | Cancel):
            attempt = getattr(message, "attempt", getattr(message, "next_attempt", 1))
            await self.send(link, LegFailed(message.request, attempt, self._draw.choice(RETRIED), "a lie"))


async def liar_like(base_url: str, keys: Path, role: Role, draw: random.Random) -> LyingWorker:
    """Like the worker at this address; it is still to be started."""
    async with gateway_peer(base_url, keys) as peer:
        hello = await peer.hear(Hello)
        bundle = b""
        while len(bundle) < hello.bundle_bytes:
            bundle += (await peer.hear(BundleChunk)).data
    return LyingWorker(role, hello, bundle, KeyDirectory(keys), draw)
