"""Engine values as the gateway gets them. Pure conversions."""

from __future__ import annotations

from baton_engine.events import Drawn
from baton_kv_transfer.wire.gateway_link import WorkerState
from baton_kv_transfer.wire.values import TokenEntry
from baton_worker.views import EngineSnapshot


def token_entry(event: Drawn) -> TokenEntry:
    return TokenEntry(
        request=event.key.request,
        attempt=event.key.attempt,
        choice=event.choice,
        first_index=event.first_index,
        ids=event.ids,
        logprobs=event.logprobs,
        finish=event.finish,
    )


def worker_state(snapshot: EngineSnapshot, draining: bool) -> WorkerState:
    """Load as of the engine's last turn."""
    stats = snapshot.stats
    return WorkerState(
        draining=draining,
        running=stats.running,
        waiting=stats.waiting,
        waiting_tokens=stats.waiting_tokens,
        blocks_free=stats.blocks_free + stats.blocks_cached,
        blocks_cached=stats.blocks_cached,
        steps=snapshot.steps,
        step_s=snapshot.step_s,
    )
