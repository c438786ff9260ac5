"""Reports of a worker and its engine, to gateways and on `/state`: conversions of snapshots, and the log of steps."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import msgspec

from baton_engine.scheduling.events import Drawn, PromptScored
from baton_engine.scheduling.step_load import StepLoad
from baton_kv_transfer.transports.bandwidth import lanes
from baton_wire.messages.gateway_link import (
    MAX_ENTRIES,
    MAX_PROMPT_LOGPROBS,
    MAX_STATE_TIMINGS,
    Hello,
    PromptLogprobs,
    Tokens,
    WorkerState,
)
from baton_wire.messages.measures import StepTiming
from baton_wire.messages.packed_logprobs import pack_logprobs
from baton_wire.messages.values import PACKED_ID_BYTES, LegTimes, RequestKey, Role, TokenEntry
from baton_worker.building.parts import EngineParts
from baton_worker.config import WorkerConfig
from baton_worker.reporting.views import EngineSnapshot, StateView, TransferView

MAX_TOKEN_BYTES = 1 << 20
"""Most bytes of ids and log probabilities in one message, so that later messages do not wait long."""
STEPS_KEPT = 64
"""Steps that a log keeps until they are taken."""


class StepLog:
    """The latest engine steps with what was in them, on their way from the engine thread to gateways.

    One thread adds, another takes: a deque's ends need no lock. Old steps that were not taken are dropped.
    """

    def __init__(self) -> None:
        self._steps: deque[tuple[int, StepLoad, float]] = deque(maxlen=STEPS_KEPT)

    def add(self, step: int, load: StepLoad, seconds: float) -> None:
        """Engine thread: a step was collected."""
        self._steps.append((step, load, seconds))

    def take(self) -> tuple[StepTiming, ...]:
        """At most `MAX_STATE_TIMINGS` of the steps since the last call, drawn evenly; steps without work left out."""
        steps = []
        while True:
            try:
                steps.append(self._steps.popleft())
            except IndexError:
                break
        steps = [entry for entry in steps if entry[1].rows and entry[2] > 0]
        stride = -(-len(steps) // MAX_STATE_TIMINGS) or 1
        return tuple(_timing(*entry) for entry in steps[::stride])


def _timing(step: int, load: StepLoad, seconds: float) -> StepTiming:
    return StepTiming(step, load.prefill_tokens, load.prefill_pairs, load.decode_rows, load.kv_tokens, seconds)


def token_entry(event: Drawn, key: RequestKey, times: LegTimes | None = None) -> TokenEntry:
    """The event's tokens under the attempt `key`, which may be a later one than the engine knows. `times`: of the leg,
    where they are due."""
    return TokenEntry(
        request=key.request,
        attempt=key.attempt,
        choice=event.choice,
        first_index=event.first_index,
        ids=event.ids,
        logprobs=None if event.logprobs is None else pack_logprobs(event.logprobs),
        finish=event.finish,
        cached_tokens=event.cached_tokens,
        times=times,
        device_s=event.device_s,
    )


def token_messages(step: int, entries: Sequence[TokenEntry]) -> Iterator[Tokens]:
    """Pack a step's tokens into messages that fit into a frame."""
    batch: list[TokenEntry] = []
    size = 0
    for entry in entries:
        entry_bytes = PACKED_ID_BYTES * len(entry.ids) + len(entry.logprobs or b"")
        if batch and (len(batch) == MAX_ENTRIES or size + entry_bytes > MAX_TOKEN_BYTES):
            yield Tokens(step, tuple(batch))
            batch, size = [], 0
        batch.append(entry)
        size += entry_bytes
    if batch:
        yield Tokens(step, tuple(batch))


def prompt_logprobs(event: PromptScored, key: RequestKey) -> Iterator[PromptLogprobs]:
    """Pack a prompt's log probabilities into messages that fit into a frame."""
    for start in range(0, len(event.logprobs), MAX_PROMPT_LOGPROBS):
        piece = event.logprobs[start : start + MAX_PROMPT_LOGPROBS]
        yield PromptLogprobs(key.request, key.attempt, event.first_index + start, piece)


def token_blocks(config: WorkerConfig, parts: EngineParts) -> Callable[[int], int]:
    """The conversion from blocks of the pool to blocks as gateways count them: of tokens, in all groups of layers."""
    geometry, context = parts.geometry, parts.limits.max_context_tokens
    keeps_all = config.hands_over
    return lambda blocks: geometry.token_blocks(blocks, context, keeps_all=keeps_all)


def worker_state(
    snapshot: EngineSnapshot, draining: bool, counted: Callable[[int], int] = lambda blocks: blocks
) -> WorkerState:
    """The load as of the engine's last turn, with requests posted since. `counted`: see `token_blocks`."""
    stats = snapshot.stats
    return WorkerState(
        draining=draining,
        running=stats.running,
        waiting=stats.waiting + snapshot.arriving,
        waiting_tokens=stats.waiting_tokens + snapshot.arriving_tokens,
        blocks_free=counted(stats.blocks_free + stats.blocks_cached),
        blocks_cached=counted(stats.blocks_cached),
        steps=snapshot.steps,
        step_s=snapshot.step_s,
        computing_tokens=snapshot.computing_tokens,
    )


def add_measures(
    state: WorkerState, startup_s: float | None, transfer: TransferView, timings: tuple[StepTiming, ...]
) -> WorkerState:
    """Add the measures that sizing needs of this worker to its state."""
    kv_bytes = transfer.kv_bytes_sent + transfer.kv_bytes_received
    ways = lanes(transfer.links)
    return msgspec.structs.replace(state, startup_s=startup_s, kv_bytes=kv_bytes, timings=timings, lanes=ways)


def hello(config: WorkerConfig, parts: EngineParts, epoch: bytes, pair_port: int | None, role: Role) -> Hello:
    """The worker's introduction to gateways; `role` is the present one."""
    return Hello(
        role=role,
        epoch=epoch,
        fingerprint=parts.fingerprint,
        template_hash=config.template_hash,
        pair_port=pair_port,
        served_name=config.served_name,
        vocab_size=parts.limits.vocab_size,
        max_context_tokens=parts.limits.max_context_tokens,
        max_choices=parts.limits.max_choices,
        max_sequences=parts.scheduler.config.max_slots,
        block_tokens=parts.geometry.block_tokens,
        blocks_total=token_blocks(config, parts)(parts.pool.num_blocks),
        bundle_hash=parts.bundle.sha256,
        bundle_bytes=len(parts.bundle.data),
        keeps_answers=config.keep_answers,
        flips=config.flips,
        encoding=parts.limits.encoding,
    )


def state_view(
    config: WorkerConfig,
    parts: EngineParts,
    epoch: bytes,
    snapshot: EngineSnapshot,
    draining: bool,
    transfer: TransferView,
    role: Role,
) -> StateView:
    """The content of `/state`; `role` is the present one."""
    stats = snapshot.stats
    return StateView(
        role=role.value,
        epoch=epoch.hex(),
        pid=os.getpid(),
        revision=config.template_hash,
        blocks_total=parts.pool.num_blocks,
        blocks_free=stats.blocks_free + stats.blocks_cached,
        block_tokens=parts.geometry.block_tokens,
        block_bytes=sum(pool.geometry.block_bytes for pool in parts.pools),
        running=stats.running,
        waiting=stats.waiting,
        waiting_tokens=stats.waiting_tokens,
        draining=draining,
        transfer=transfer,
    )
