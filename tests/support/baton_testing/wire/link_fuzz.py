"""Frames on their way, altered: what a link hands on is a beginning of what was sent, and it ends with a typed reason.

Half of the steps alter bytes of frames that were signed. The others sign what no honest peer sends: then the codec is
the code between the bytes and the machines.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter

from baton_kv_transfer.link import PairLink
from baton_testing.wire.fuzz import WireFuzz
from baton_testing.wire.samples import samples
from baton_testing.wire.sessions import sessions
from baton_wire.errors import BadFieldsError, BadMessageError
from baton_wire.handshake import Channel, LinkIdentity, LinkRole
from baton_wire.messages.codec import decode
from baton_wire.messages.gateway_link import ToGateway, ToWorker
from baton_wire.messages.pair_link import PairMessage
from baton_wire.session import AlteredFrames, SignedFrames

PEER = LinkIdentity(LinkRole.PREFILL, b"p" * 16, 2, "k1", Channel.CONTROL)
TYPED = ("AlteredFrameError", "BadMessageError", "LinkLostError")


class _Recorded:
    """A connection that carries these bytes, then ends."""

    source = ""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def receive(self, size: int) -> bytes:
        if size > len(self._data):
            raise EOFError("the peer closed the connection")
        taken, self._data = self._data[:size], self._data[size:]
        return taken

    async def send(self, data: bytes) -> None:
        """The bytes are not read."""

    def close(self) -> None:
        """The link ends by itself."""

    def reset_on_close(self) -> None:
        """The change would not be noticed."""


class LinkFuzz(WireFuzz):
    """`link_step` and `socket_step` take a few frames each. What must not be is an AssertionError, or any other."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.of_pairs = samples(self.chance, PairMessage, 6)
        self.of_gateways = [(union, samples(self.chance, union, 6)) for union in (ToGateway, ToWorker)]
        self.ends: Counter[str] = Counter()
        self.refused = 0
        """Frames that did not end their link: their type was known and their fields did not fit."""
        self.altered = AlteredFrames()

    async def link_step(self) -> int:
        """Over a control link of a pair; how many frames were sent."""
        frames = [self.chance.choice(self.of_pairs) for _ in range(self.chance.randint(1, 4))]
        ours, theirs = sessions(self.altered)
        is_hostile = self.chance.random() < 0.5
        if is_hostile:
            frames[-1] = self.spoilt(frames[-1])
        data = b"".join(theirs.sign(struct.pack("!I", len(frame))) + theirs.sign(frame) for frame in frames)
        got: list[PairMessage] = []
        altered = data if is_hostile else self.spoilt(data)
        link = PairLink(_Recorded(altered), PEER, ours, heartbeat_s=60.0)
        reason = await link.run(got.append)
        assert reason.startswith(TYPED), reason
        self.ends[reason.partition(":")[0]] += 1
        if not is_hostile:
            assert got == [decode(frame, PairMessage) for frame in frames][: len(got)]
        return len(frames)

    async def socket_step(self) -> int:
        """Over a WebSocket of a gateway, which keeps frames apart; they may also be left out, repeated or swapped."""
        union, corpus = self.chance.choice(self.of_gateways)
        frames = [self.chance.choice(corpus) for _ in range(self.chance.randint(1, 4))]
        ours, theirs = sessions(self.altered)
        is_hostile = self.chance.random() < 0.5
        sent = [self.spoilt(frame) if is_hostile else frame for frame in frames]
        signed = [theirs.sign(frame) for frame in sent]
        if not is_hostile:
            self._disorder(signed)
        waiting = iter(signed)

        async def receive() -> bytes:
            return next(waiting, b"")

        link, got = SignedFrames(_Recorded(b"").send, receive, ours), []
        try:
            while True:
                try:
                    got.append(decode(await link.receive(), union))
                except BadFieldsError:
                    self.refused += 1
        except BadMessageError as error:
            self.ends[type(error).__name__] += 1
        if not is_hostile:
            assert got == [decode(frame, union) for frame in frames][: len(got)]
        return len(frames)

    def _disorder(self, signed: list[bytes]) -> None:
        at = self.chance.randrange(len(signed))
        match self.chance.randrange(4):
            case 0:
                del signed[at]
            case 1:
                signed.insert(at, signed[at])
            case 2:
                signed[at], signed[0] = signed[0], signed[at]
            case _:
                signed[at] = self.spoilt(signed[at])

    def run(self, frames: int) -> int:
        """Drive at least `frames` frames; returns how many it were."""

        async def steps() -> int:
            done = 0
            while done < frames:
                done += await (self.link_step() if self.chance.random() < 0.5 else self.socket_step())
            return done

        return asyncio.run(steps())
