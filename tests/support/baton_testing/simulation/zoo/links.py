"""Faulty variants of what surrounds the machines: errors of one write, silence that is half noticed, health, drains."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from baton_decode_worker.service import DecodeService
from baton_gateway.requests.request import RequestLife
from baton_gateway.requests.request_events import Action, Arrived, Event
from baton_kv_transfer.handover import HandoverKey
from baton_kv_transfer.link import PairLink
from baton_kv_transfer.prefill.machine import PrefillHandovers
from baton_kv_transfer.prefill.records import HandoverOutcome, PrefillAction, PrefillHandover, PrefillState
from baton_testing.simulation.streams import Stream
from baton_wire.liveness import Liveness, PeerState
from baton_wire.messages.gateway_link import LegFailed
from baton_wire.messages.pair_link import PairMessage
from baton_wire.messages.values import Reason
from baton_wire.session import FRAME_MAC_BYTES, Session


class SpreadsErrorsOfOneWrite(PrefillHandovers):
    """llm-d#191: an error of the network adapter in one transfer takes everything else with it."""

    def put_failed(self, key: HandoverKey, put: int, reason: Reason, detail: str, now: float) -> list[PrefillAction]:
        actions = super().put_failed(key, put, reason, detail, now)
        if reason is Reason.INTERNAL:
            still_open = [known for known in self._handovers.values() if known.state is not PrefillState.CLOSING]
            for handover in still_open:
                outcome = HandoverOutcome(reason, detail, report=True, tell_peer=True)
                actions += self._close(handover, outcome, now)
        return actions


class TakesAlteredFrames(Session):
    """Found by bits flipped on every link: the handshake proved the peer, and nothing proved the messages."""

    def verify(self, signed: bytes) -> bytes:
        return signed[:-FRAME_MAC_BYTES]


class TakesBytesForLife(PairLink):
    """Found by a flipped bit in a length: every byte counts as a sign of life, and a begun frame has no deadline."""

    async def receive(self) -> PairMessage:
        self.session.__class__ = TakesAlteredFrames  # otherwise a length that was altered is not believed
        connection = cast(Stream, self._connection)
        connection.on_bytes = lambda: self._alive.heard(self._loop.time())
        return await super().receive()


class WaitsForBegunFrames(PairLink):
    """The same from a peer that trickles: while a frame is under way nothing bounds it."""

    @property
    def state(self) -> PeerState:
        if cast(Stream, self._connection).has_bytes:
            self._alive.heard(self._loop.time())
        return super().state


class TrustsHeartbeats(PrefillHandovers):
    """A link whose heartbeats come is sound: hand-overs may time out over it one after the other, for ever."""

    def _suspected(self, handover: PrefillHandover, now: float) -> list[PrefillAction]:
        return []


class IgnoresConflicts(RequestLife):
    """A decode worker repeats another token than the prefill worker sent, and the gateway does not compare."""

    def _arrived(self, event: Arrived, now: float) -> list[Action]:
        entry, run = event.entry, self._runs.get(event.entry.request)
        if run is not None and entry.attempt == run.attempt:
            known = self._choices[run.prompt * self._n + entry.choice].ids[entry.first_index :][: len(entry.ids)]
            event = msgspec.structs.replace(
                event, entry=msgspec.structs.replace(entry, ids=(*known, *entry.ids[len(known) :]))
            )
        return super()._arrived(event, now)

    def handle(self, event: Event, now: float) -> list[Action]:
        return self._arrived(event, now) if isinstance(event, Arrived) else super().handle(event, now)


class SuspectsForEver(Liveness):
    """dynamo#3764 as a half-open link: the silent peer gets no new work, and is never given up."""

    def state(self, now: float) -> PeerState:
        state = super().state(now)
        return PeerState.SUSPECT if state is PeerState.DEAD else state


class TakesLookingForHearing(Liveness):
    """wtdcode/vllm-backport#33 over a link that is cut one way: what goes out is taken for a sign of life."""

    def state(self, now: float) -> PeerState:
        state = super().state(now)
        if state is PeerState.SUSPECT:
            self.heard(now)
        return state


class CutsWorkOnDrain(DecodeService):
    """dynamo#13559, knative#13953: asked to stop, a worker ends what it is in the middle of."""

    def leave(self) -> None:
        super().leave()
        for key, link in list(self._open._links.items()):
            self._cancel(key, None)

            link.send(LegFailed(key.request, key.attempt, Reason.BAD_REQUEST, "the worker stops"))


def answers_while_the_engine_stands(snapshot: Any, now: float) -> bool:
    """CVE-2026-114051: health is 200 while the engine is dead."""
    return True
