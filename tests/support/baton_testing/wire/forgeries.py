"""Grants and seals that were not made for the hand-over they name: both machines are asked to act on them."""

from __future__ import annotations

import random
from collections import Counter

from msgspec.structs import replace

from baton_kv_transfer.decode.records import Landed
from baton_kv_transfer.handover import SendTo
from baton_kv_transfer.prefill.records import Put
from baton_testing.kv_transfer.builders import GEOMETRY
from baton_testing.kv_transfer.decode_machine import FIRST as DECODE_FIRST
from baton_testing.kv_transfer.decode_machine import P1, P2, Decode, seal, sums
from baton_testing.kv_transfer.prefill_machine import D1, D2, Prefill, grant
from baton_wire.messages.pair_link import FirstToken, Grant, Seal, Span

UNIT = GEOMETRY.block_bytes
LANDING_BYTES = 1 << 20


class Forgeries:
    """`forge_grant` and `forge_seal` try one each against a machine in a state where the real one would be taken."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.counts: Counter[str] = Counter(dict.fromkeys(("grants", "grants acted on", "seals", "seals landed"), 0))

    def forge_grant(self) -> None:
        """A put that such a grant causes would write where the decode worker never let it."""
        p = Prefill()
        p.link(D1)
        p.link(D2)
        p.open()
        p.compute()
        if self.chance.random() < 0.3:
            p.draw()
        forged, peer = self._grant()
        actions = p.hear(forged, peer)
        self.counts["grants"] += 1
        self.counts["grants acted on"] += any(isinstance(action, Put) for action in actions)

    def _grant(self) -> tuple[Grant, bytes]:
        chance = self.chance
        match chance.randrange(9):
            case 0:  # another decode worker says it
                return grant(), D2
            case 1:  # of another request
                return grant(request=chance.randbytes(16)), D1
            case 2:  # of another attempt
                return grant(attempt=chance.randint(2, 1_000)), D1
            case 3:  # beyond the landing region
                offset = LANDING_BYTES - chance.randint(0, 4 * UNIT - 1)
                return grant(spans=(Span(offset=offset, length=4 * UNIT),)), D1
            case 4:  # bytes twice
                return grant(spans=(Span(offset=0, length=2 * UNIT), Span(offset=UNIT, length=2 * UNIT))), D1
            case 5:  # more or fewer bytes than the stream
                length = chance.choice([n for n in range(1, 8) if n != 4]) * UNIT
                return grant(spans=(Span(offset=0, length=length),)), D1
            case 6:  # another unit
                return grant(unit_tokens=chance.choice((1, 2, 3, 5, 8, 16))), D1
            case 7:  # another range of tokens
                return grant(start_tokens=chance.choice((1, 2, 3, 16, 20)), end_tokens=chance.choice((13, 15, 99))), D1
            case _:  # units that no span may cut
                cut = chance.randint(1, UNIT - 1)
                return grant(spans=(Span(offset=0, length=cut), Span(offset=UNIT, length=4 * UNIT - cut))), D1

    def forge_seal(self) -> None:
        """All bytes arrived and are scattered, but one part of the Seal belongs to another hand-over."""
        d = Decode()
        d.link(P1)
        d.link(P2)
        granted = [action.message for action in d.expect() if isinstance(action, SendTo)]
        (real,) = (message for message in granted if isinstance(message, Grant))
        for first in range(0, 4, 2):
            d.land(first, first + 2, transfer=real.transfer, base=real.spans[0].offset)
            d.scattered(first, first + 2)
        forged, peer = self._seal(real)
        actions = d.hear(forged, peer)
        self.counts["seals"] += 1
        self.counts["seals landed"] += any(isinstance(action, Landed) for action in actions)

    def _seal(self, real: Grant) -> tuple[Seal, bytes]:
        chance, good = self.chance, sums()
        match chance.randrange(8):
            case 0:  # another prefill worker says it
                return seal(transfer=real.transfer), P2
            case 1:  # another transfer
                return seal(transfer=real.transfer + chance.randint(1, 1 << 30)), P1
            case 2:  # of another attempt
                return replace(seal(transfer=real.transfer), attempt=chance.randint(2, 1_000)), P1
            case 3:  # of another request
                return replace(seal(transfer=real.transfer), request=chance.randbytes(16)), P1
            case 4:  # other checksums
                at = chance.randrange(len(good))
                return seal(
                    real.transfer, good[:at] + bytes([good[at] ^ 1 << chance.randrange(8)]) + good[at + 1 :]
                ), P1
            case 5:  # too few or too many
                return seal(real.transfer, good[: -8 * chance.randint(1, 8)] if chance.random() < 0.5 else good * 2), P1
            case 6:  # other choices
                first = (*DECODE_FIRST, FirstToken(choice=chance.randint(2, 100), token=1))
                return seal(real.transfer, tokens=first[chance.randint(0, 1) :]), P1
            case _:  # one that was good for an earlier hand-over, with its checksums of then
                stale = good[8:] + good[:8]
                return seal(real.transfer, stale), P1
