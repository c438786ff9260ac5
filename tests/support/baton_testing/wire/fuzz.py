"""Frames that no honest peer sends: a corpus of every message, changed at random in its bytes or in its structure."""

from __future__ import annotations

import random
from typing import Any

import msgpack

from baton_testing.wire.samples import samples
from baton_wire.errors import AuthenticationError, BadMessageError
from baton_wire.handshake import (
    Channel,
    LinkRole,
    Party,
    check_proof,
    pack_offer,
    pack_proof,
    parse_offer,
    parse_proof,
)
from baton_wire.keys import KeySet
from baton_wire.messages import gateway_link, operator_link, pair_link
from baton_wire.messages.codec import decode

KEYS = KeySet({"k1": b"1" * 32})
UNIONS: tuple[Any, ...] = (
    pair_link.PairMessage,
    gateway_link.ToGateway,
    gateway_link.ToWorker,
    operator_link.ToGateway,
    operator_link.ToOperator,
)
LARGE = (0, 1, -1, 127, 128, 255, 1 << 16, 1 << 24, (1 << 31) - 1, 1 << 32, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1)
BOMBS = (
    b"\xdd\xff\xff\xff\xff",  # an array of 2^32 - 1
    b"\xdf\xff\xff\xff\xff",  # a map of as many
    b"\xc6\xff\xff\xff\xff",  # bytes of 4 GiB
    b"\xdb\xff\xff\xff\xff",  # text of 4 GiB
    b"\xc9\xff\xff\xff\xff\x01",  # an extension of 4 GiB
    b"\xc1",  # never used
    b"\x91" * 20_000,  # deeper than any stack
    b"\xdc\xff\xff" * 40,  # arrays of 65,535 in each other
)


class WireFuzz:
    """`step` decodes one frame; it returns whether the frame was taken. Anything but the typed refusal is a crash."""

    def __init__(self, seed: int, count: int = 6) -> None:
        self.chance = random.Random(seed)
        drawn = [(frame, union) for union in UNIONS for frame in samples(self.chance, union, count)]
        self.corpus, self._unions = [frame for frame, _ in drawn], [union for _, union in drawn]
        self.longest_error = 0
        self._raw = [msgpack.unpackb(frame, raw=False, strict_map_key=False) for frame in self.corpus]

    def draw(self) -> tuple[bytes, Any]:
        """A frame, and the union of messages that its reader expects."""
        number = self.chance.randrange(len(self.corpus))
        union = self._unions[number] if self.chance.random() < 0.8 else self.chance.choice(UNIONS)
        return self._frame(number), union

    def step(self) -> bool:
        frame, union = self.draw()
        try:
            decode(frame, union)
        except BadMessageError as error:
            self.longest_error = max(self.longest_error, len(str(error)))
            return False
        return True

    def _frame(self, number: int) -> bytes:
        kind = self.chance.random()
        if kind < 0.05:
            return self.chance.choice(BOMBS)
        if kind < 0.10:
            return self.chance.randbytes(self.chance.randint(0, 64))
        if kind < 0.55:
            frame: bytes = msgpack.packb(self._changed(self._raw[number]), use_bin_type=True)
            return frame
        return self.spoilt(self.corpus[number])

    def spoilt(self, frame: bytes) -> bytes:
        """Bytes flipped, cut, repeated, taken from another frame."""
        data = bytearray(frame)
        for _ in range(self.chance.randint(1, 4)):
            at = self.chance.randrange(len(data) + 1)
            match self.chance.randrange(6):
                case 0 if at < len(data):
                    data[at] ^= 1 << self.chance.randrange(8)
                case 1 if at < len(data):
                    data[at] = self.chance.choice((0x00, 0x7F, 0x80, 0x90, 0xC0, 0xC1, 0xC6, 0xDD, 0xDF, 0xFF))
                case 2:
                    del data[at:]
                case 3:
                    data[at:at] = self.chance.choice(BOMBS)[:64]
                case 4:
                    other = self.chance.choice(self.corpus)
                    data[at:] = other[self.chance.randrange(len(other)) :]
                case _:
                    data[at:at] = data[at : at + self.chance.randint(1, 16)]
        return bytes(data)

    def _changed(self, value: Any, depth: int = 0) -> Any:
        """The same structure with one or more values of another kind, count or size."""
        chance = self.chance
        if isinstance(value, list | tuple) and depth < 6:
            items = list(value)
            if items and chance.random() < 0.75:
                at = chance.randrange(len(items))
                items[at] = self._changed(items[at], depth + 1)
            else:
                match chance.randrange(4):
                    case 0 if items:
                        del items[chance.randrange(len(items))]
                    case 1:
                        items.insert(chance.randrange(len(items) + 1), self._any())
                    case 2 if items:
                        items *= chance.choice((2, 50))
                    case _:
                        chance.shuffle(items)
            return items
        return self._any()

    def _any(self) -> Any:
        chance = self.chance
        return chance.choice(
            (
                None,
                True,
                False,
                chance.choice(LARGE),
                chance.choice((0.0, -0.0, 1e308, -1e308, float("inf"), float("nan"))),
                "",
                "x" * chance.choice((1, 17, 257, 70_000)),
                chance.randbytes(chance.choice((0, 15, 16, 17, 4_096))),
                [],
                [[]] * chance.choice((1, 3)),
                {},
                {"a": 1},
            )
        )


class HandshakeFuzz:
    """Proofs that no holder of the key made: changed, replayed, of another deployment. `step`: whether one passed."""

    ACCEPTOR, DIALLER = Party(LinkRole.DECODE, b"d" * 16), Party(LinkRole.PREFILL, b"p" * 16)

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.recorded: list[bytes] = []

    def step(self) -> bool:
        chance = self.chance
        offer = parse_offer(pack_offer(self.ACCEPTOR, KEYS, chance.randbytes(32)))
        honest = pack_proof(offer, self.DIALLER, Channel.CONTROL, KEYS, chance.randbytes(32))
        match chance.randrange(5):
            case 0:  # one bit of it
                at = chance.randrange(len(honest))
                forged = honest[:at] + bytes([honest[at] ^ 1 << chance.randrange(8)]) + honest[at + 1 :]
            case 1 if self.recorded:  # an old one
                forged = chance.choice(self.recorded)
            case 2:  # of another deployment
                other = KeySet({"k1": chance.randbytes(32)})
                forged = pack_proof(offer, self.DIALLER, Channel.CONTROL, other, chance.randbytes(32))
            case 3:  # no key at all
                forged = honest[:-32] + chance.randbytes(32)
            case _:  # cut or grown
                forged = honest[: chance.randrange(len(honest))] + chance.randbytes(chance.randint(0, 40))
        self.recorded = [*self.recorded[-50:], honest]
        try:
            check_proof(offer, parse_proof(forged), KEYS)
        except AuthenticationError:
            return False
        return forged != honest
