"""Faulty variants of what surrounds the machines: errors of one write, silence that is half noticed, health, drains."""

from __future__ import annotations

from typing import Any

from baton_decode_worker.service import DecodeService
from baton_kv_transfer.handover import HandoverKey
from baton_kv_transfer.prefill.machine import PrefillHandovers
from baton_kv_transfer.prefill.records import HandoverOutcome, PrefillAction, PrefillState
from baton_wire.liveness import Liveness, PeerState
from baton_wire.messages.gateway_link import LegFailed
from baton_wire.messages.values import Reason


class SpreadsErrorsOfOneWrite(PrefillHandovers):
    """llm-d#191: an error of the network adapter in one transfer takes everything else with it."""

    def put_failed(self, key: HandoverKey, put: int, reason: Reason, detail: str, now: float) -> list[PrefillAction]:
        actions = super().put_failed(key, put, reason, detail, now)
        if reason is Reason.INTERNAL:
            for handover in [each for each in self._handovers.values() if each.state is not PrefillState.CLOSING]:
                outcome = HandoverOutcome(reason, detail, report=True, tell_peer=True)
                actions += self._close(handover, outcome, now)
        return actions


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
    """dynamo#13559, knative#13953: told to stop, a worker ends what it is in the middle of."""

    def leave(self) -> None:
        super().leave()
        for key, link in list(self._open._links.items()):
            self._cancel(key, None)

            link.send(LegFailed(key.request, key.attempt, Reason.BAD_REQUEST, "the worker stops"))


def answers_while_the_engine_stands(snapshot: Any, now: float) -> bool:
    """CVE-2026-114051: health is 200 while the engine is dead."""
    return True
