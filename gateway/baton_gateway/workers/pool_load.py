"""How busy the pools are: free slots, seconds of waiting prompts, and the rates at which pools serve. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from baton_gateway.workers.worker_view import WorkerView
from baton_wire.messages.values import PairFingerprint, Role
from baton_wire.rules.prompt_order import BUSY_S, busy_s
from baton_wire.rules.prompt_placement import PrefillSide, prompts_s

FULL_S = 0.1
"""A shorter wait for slots may only be the wait for the next step."""
UNMEASURED_TOKENS = 2_048
"""Prompt tokens that a worker of unknown speed is sent: about one step. Its first report says how fast it is."""
APART_S = 5.0
"""A worker whose own queue takes this much longer than another's is stuck, or reports wrongly."""


class PoolService(msgspec.Struct, frozen=True):
    """The tokens that wait at a pool's workers, and how fast the pool serves them."""

    waiting_tokens: float = 0.0
    tokens_per_s: float | None = None
    """None: not measured."""
    token_s: float | None = None
    """Seconds per token at its fastest worker."""
    is_limiting: bool = True
    """New requests wait for this pool. False while a decode worker has free slots."""

    def empty(self) -> PoolService:
        """The same pool with nothing waiting at its workers."""
        return msgspec.structs.replace(self, waiting_tokens=0.0)

    def wait_s(self, more_tokens: float) -> float | None:
        """Seconds until the waiting tokens and `more_tokens` have been served; None: unknown."""
        tokens = self.waiting_tokens + more_tokens
        if not self.is_limiting or tokens <= 0:
            return 0.0
        return tokens / self.tokens_per_s if self.tokens_per_s else None


def is_backed_up(
    workers: Sequence[WorkerView], fingerprint: PairFingerprint, ttft_s: float, tpot_s: float | None = None
) -> bool:
    """Return whether every prefill worker of the revision has as much work as a prompt may find.

    A worker that has computed nothing yet is assumed to be as fast as the others; if none has, a worker that was sent
    `UNMEASURED_TOKENS` has enough. One that also decodes computes prompts in pieces that keep `tpot_s`.
    """
    usable = _usable(workers, Role.PREFILL, fingerprint)
    if usable and not any(worker.token_s for worker in usable):
        return all(worker.load_tokens > UNMEASURED_TOKENS for worker in usable)
    return bool(usable) and all(_work_s(worker, usable, tpot_s) > busy_s(ttft_s) for worker in usable)


def own_prefill(workers: Sequence[WorkerView], fingerprint: PairFingerprint) -> float:
    """This gateway process's share of the revision's usable prefill workers."""
    return sum(1 / worker.gateways for worker in _usable(workers, Role.PREFILL, fingerprint))


def is_full(workers: Sequence[WorkerView], fingerprint: PairFingerprint, output_tokens: float) -> bool:
    """Return whether sequences wait for long at every decode worker of the revision. `output_tokens`: a sequence's
    usual length.
    """
    usable = _usable(workers, Role.DECODE, fingerprint)
    return bool(usable) and all(decode_wait_s(worker, output_tokens) > BUSY_S for worker in usable)


def decode_wait_s(worker: WorkerView, output_tokens: float) -> float:
    """Seconds until the requests that wait at the worker have slots; 0 where none waits or nothing runs."""
    running = worker.running
    if worker.load_sequences - worker.waiting >= worker.max_sequences:  # more sent since the report than it has slots
        running = worker.max_sequences
    if not worker.waiting or not running:
        return 0.0
    return worker.waiting * output_tokens * worker.step_s / running


def free_sequences(workers: Sequence[WorkerView], fingerprint: PairFingerprint) -> int:
    """Free slots of the revision's decode workers: those that no running, waiting or sent sequence takes."""
    usable = _usable(workers, Role.DECODE, fingerprint)
    return sum(max(0, worker.max_sequences - worker.load_sequences) for worker in usable)


def num_prefill(workers: Sequence[WorkerView], served_name: str) -> float:
    """This gateway process's share of a model's prefill workers, of all its revisions."""
    prefill = (worker for worker in workers if worker.served_name == served_name and worker.role is Role.PREFILL)
    return sum(1 / worker.gateways for worker in prefill if worker.is_usable)


def num_decode_slots(workers: Sequence[WorkerView], served_name: str) -> float:
    """This gateway process's share of the slots of a model's decode workers, of all its revisions."""
    decode = (worker for worker in workers if worker.served_name == served_name and worker.role is Role.DECODE)
    return sum(worker.max_sequences / worker.gateways for worker in decode if worker.is_usable)


def own_slots(workers: Sequence[WorkerView], fingerprint: PairFingerprint) -> float:
    """This gateway process's share of the slots of the revision's decode workers."""
    return sum(worker.max_sequences / worker.gateways for worker in _usable(workers, Role.DECODE, fingerprint))


def num_slots(workers: Sequence[WorkerView], fingerprint: PairFingerprint, role: Role = Role.DECODE) -> int:
    """Sequences that the revision's workers of a role run at once."""
    return sum(worker.max_sequences for worker in _usable(workers, role, fingerprint))


def least_prompts_s(workers: Sequence[WorkerView], fingerprint: PairFingerprint, tpot_s: float | None) -> float:
    """Seconds until the least busy prefill worker has computed its prompts; 0 if unknown."""
    usable = _usable(workers, Role.PREFILL, fingerprint)
    return min((_work_s(worker, usable, tpot_s) for worker in usable), default=0.0)


def _usable(workers: Sequence[WorkerView], role: Role, fingerprint: PairFingerprint) -> list[WorkerView]:
    fitting = (worker for worker in workers if worker.role is role and worker.fingerprint == fingerprint)
    return [worker for worker in fitting if worker.is_usable]


def pool_services(
    workers: Sequence[WorkerView], served_name: str, output_tokens: float
) -> tuple[PoolService, PoolService]:
    """How a model's prefill and decode pools serve now, by their workers' reports.

    The rate of a prefill pool comes from the times of its workers' steps. A decode worker makes one token a step for
    each running sequence; its pool is limiting only while sequences wait at every worker. Workers whose own queues
    take far longer than those of the others are left out, with their load and their rate.
    """
    usable = [worker for worker in workers if worker.served_name == served_name and worker.is_usable]
    prefill = [worker for worker in usable if worker.role is Role.PREFILL]
    known = [worker.more_token_s for worker in prefill if worker.more_token_s is not None]
    usual = sum(known) / max(1, len(known))
    times = [usual if worker.more_token_s is None else worker.more_token_s for worker in prefill]
    abreast = _abreast([worker.load_tokens * seconds for worker, seconds in zip(prefill, times, strict=True)])
    rate = sum(1 / times[place] for place in abreast) if all(times) else None
    load = sum(prefill[place].load_tokens for place in abreast)
    prefill_service = PoolService(load, rate, min(times, default=None) or None, is_limiting=bool(prefill))
    decode = [worker for worker in usable if worker.role is Role.DECODE]
    waits = [decode_wait_s(worker, output_tokens) for worker in decode]
    is_limiting = bool(decode) and all(wait_s > FULL_S for wait_s in waits)
    decode = [decode[place] for place in _abreast(waits)]
    running = sum(worker.running / worker.step_s for worker in decode if worker.step_s > 0)
    waiting = sum(worker.waiting for worker in decode) * output_tokens
    return prefill_service, PoolService(waiting, running or None, None, is_limiting)


def _abreast(waits_s: Sequence[float]) -> list[int]:
    """Indices of the workers whose own queue takes not much longer than the shortest: only these get new requests."""
    least_s = min(waits_s, default=0.0)
    return [place for place, wait_s in enumerate(waits_s) if wait_s <= least_s + APART_S]


def prompt_token_s(worker: WorkerView, others: Sequence[WorkerView]) -> float:
    """Seconds per prompt token; until its first step, those of other prefill workers; 0 while no step was seen."""
    if worker.token_s is not None:
        return worker.token_s
    known = [worker.token_s for worker in others if worker.role is Role.PREFILL and worker.token_s is not None]
    return sum(known) / max(1, len(known))


def _work_s(worker: WorkerView, others: Sequence[WorkerView], tpot_s: float | None) -> float:
    """Seconds until the worker has computed its prompts; 0 if unknown."""
    if tpot_s is None or not worker.rows:
        return worker.load_tokens * prompt_token_s(worker, others)
    return prompts_s(view_prefill_side(worker, 0), worker.load_tokens, tpot_s) or 0.0


def view_prefill_side(
    worker: WorkerView, missing: int, *, may_decode: bool = False, has_slot: bool = False
) -> PrefillSide:
    """The load that a prompt with `missing` uncached tokens meets at the worker."""
    return PrefillSide(
        token_s=worker.token_s,
        more_token_s=worker.more_token_s,
        queued_tokens=worker.load_tokens,
        missing_tokens=missing,
        may_decode=may_decode,
        rows=worker.rows,
        base_s=worker.rows_s,
        piece_token_s=worker.piece_token_s,
        piece_fixed_s=worker.piece_fixed_s,
        step_fixed_s=None if worker.prompt_cost is None else worker.prompt_cost.fixed_s,
        recent_step_s=worker.recent_step_s,
        coming_tokens_s=worker.coming_tokens_s,
        has_slot=has_slot,
    )
