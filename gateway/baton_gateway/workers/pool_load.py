"""How busy the pools are: free slots, seconds of waiting prompts, and the rates at which pools serve. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from baton_gateway.workers.worker_view import WorkerView
from baton_wire.messages.values import PairFingerprint, Role
from baton_wire.rules.prompt_order import BUSY_S, busy_s
from baton_wire.rules.prompt_placement import PrefillSide, prompts_s

FULL_S = 0.1
"""A wait for slots that is shorter may be that for the next step."""
APART_S = 5.0
"""A worker whose own line is so much longer than another's is stuck, or does not say what is so."""


@dataclass(frozen=True, slots=True)
class PoolService:
    """What waits at the workers of a pool, and how fast they serve it together."""

    waiting_tokens: float = 0.0
    tokens_per_s: float | None = None
    """None: not measured."""
    token_s: float | None = None
    """Seconds a token takes at its fastest worker."""
    is_limiting: bool = True
    """Whether what comes has to wait for it at all: not where a decode worker has slots left."""

    def empty(self) -> PoolService:
        """As fast, with nothing that waits at its workers."""
        return replace(self, waiting_tokens=0.0)

    def wait_s(self, more_tokens: float) -> float | None:
        """Until `more_tokens` besides those that wait have been served; None: unknown."""
        tokens = self.waiting_tokens + more_tokens
        if not self.is_limiting or tokens <= 0:
            return 0.0
        return tokens / self.tokens_per_s if self.tokens_per_s else None


def is_backed_up(
    workers: Sequence[WorkerView], fingerprint: PairFingerprint, ttft_s: float, tpot_s: float | None = None
) -> bool:
    """Every prefill worker of the revision has as much work as prompts may find there; False if unknown.

    One that has computed nothing yet is taken to be as fast as the others. One that decodes, too, computes prompts in
    pieces that keep `tpot_s`.
    """
    usable = _usable(workers, Role.PREFILL, fingerprint)
    return bool(usable) and all(_work_s(worker, usable, tpot_s) > busy_s(ttft_s) for worker in usable)


def own_prefill(workers: Sequence[WorkerView], fingerprint: PairFingerprint) -> float:
    """This gateway's part of the prefill workers that prompts of the revision can go to."""
    return sum(1 / worker.gateways for worker in _usable(workers, Role.PREFILL, fingerprint))


def is_full(workers: Sequence[WorkerView], fingerprint: PairFingerprint, output_tokens: float) -> bool:
    """The same of the decode workers: what waits at each for slots or blocks is work for so long. `output_tokens`: of
    a sequence, as a rule.
    """
    usable = _usable(workers, Role.DECODE, fingerprint)
    return bool(usable) and all(decode_wait_s(worker, output_tokens) > BUSY_S for worker in usable)


def decode_wait_s(worker: WorkerView, output_tokens: float) -> float:
    """Until its slots have taken in what waits there now; 0 where nothing waits or nothing runs."""
    running = worker.running
    if worker.load_sequences - worker.waiting >= worker.max_sequences:  # sent since the report, and more than its slots
        running = worker.max_sequences
    if not worker.waiting or not running:
        return 0.0
    return worker.waiting * output_tokens * worker.step_s / running


def free_sequences(workers: Sequence[WorkerView], fingerprint: PairFingerprint) -> int:
    """Slots of the revision's decode workers that nobody has or is about to have."""
    usable = _usable(workers, Role.DECODE, fingerprint)
    return sum(max(0, worker.max_sequences - worker.load_sequences) for worker in usable)


def num_prefill(workers: Sequence[WorkerView], served_name: str) -> float:
    """This gateway's part of a model's prefill workers, of all its revisions."""
    prefill = (each for each in workers if each.served_name == served_name and each.role is Role.PREFILL)
    return sum(1 / worker.gateways for worker in prefill if worker.is_usable)


def num_slots(workers: Sequence[WorkerView], fingerprint: PairFingerprint) -> int:
    """Sequences that the revision's decode workers run at once."""
    return sum(worker.max_sequences for worker in _usable(workers, Role.DECODE, fingerprint))


def least_prompts_s(workers: Sequence[WorkerView], fingerprint: PairFingerprint, tpot_s: float | None) -> float:
    """Seconds that the prefill worker with the least to do computes what it has; 0 if unknown."""
    usable = _usable(workers, Role.PREFILL, fingerprint)
    return min((_work_s(worker, usable, tpot_s) for worker in usable), default=0.0)


def _usable(workers: Sequence[WorkerView], role: Role, fingerprint: PairFingerprint) -> list[WorkerView]:
    fitting = (each for each in workers if each.role is role and each.fingerprint == fingerprint)
    return [worker for worker in fitting if worker.is_usable]


def pool_services(
    workers: Sequence[WorkerView], served_name: str, output_tokens: float
) -> tuple[PoolService, PoolService]:
    """How the prefill and the decode workers of a model serve now, by what they reported.

    A prefill pool serves as many tokens a second as its workers' own steps took. A decode worker makes one token a
    step for each running sequence; it limits only where it has let others wait. Workers far behind the others of their
    pool count for nothing, neither what they have nor what they serve.
    """
    usable = [each for each in workers if each.served_name == served_name and each.is_usable]
    prefill = [each for each in usable if each.role is Role.PREFILL]
    known = [each.more_token_s for each in prefill if each.more_token_s is not None]
    usual = sum(known) / max(1, len(known))
    times = [usual if each.more_token_s is None else each.more_token_s for each in prefill]
    abreast = _abreast([each.load_tokens * seconds for each, seconds in zip(prefill, times, strict=True)])
    rate = sum(1 / times[place] for place in abreast) if all(times) else None
    load = sum(prefill[place].load_tokens for place in abreast)
    there = PoolService(load, rate, min(times, default=None) or None, is_limiting=bool(prefill))
    decode = [each for each in usable if each.role is Role.DECODE]
    waits = [decode_wait_s(each, output_tokens) for each in decode]
    is_limiting = bool(decode) and all(wait_s > FULL_S for wait_s in waits)
    decode = [decode[place] for place in _abreast(waits)]
    running = sum(each.running / each.step_s for each in decode if each.step_s > 0)
    waiting = sum(each.waiting for each in decode) * output_tokens
    return there, PoolService(waiting, running or None, None, is_limiting)


def _abreast(waits_s: Sequence[float]) -> list[int]:
    """The places of those whose own line is not far longer than the shortest: only there does anybody go."""
    least_s = min(waits_s, default=0.0)
    return [place for place, wait_s in enumerate(waits_s) if wait_s <= least_s + APART_S]


def token_s(worker: WorkerView, others: Sequence[WorkerView]) -> float:
    """Seconds per prompt token; until its first step as other prefill workers take, 0 while none was seen of any."""
    if worker.token_s is not None:
        return worker.token_s
    known = [each.token_s for each in others if each.role is Role.PREFILL and each.token_s is not None]
    return sum(known) / max(1, len(known))


def _work_s(worker: WorkerView, others: Sequence[WorkerView], tpot_s: float | None) -> float:
    """Seconds until it has computed the prompts that it has; 0 if unknown."""
    if tpot_s is None or not worker.rows:
        return worker.load_tokens * token_s(worker, others)
    return prompts_s(prefill_side(worker, 0), worker.load_tokens, tpot_s) or 0.0


def prefill_side(worker: WorkerView, missing: int, *, may_keep: bool = False, has_slot: bool = False) -> PrefillSide:
    """What a prompt of so many missing tokens meets there."""
    return PrefillSide(
        *(worker.token_s, worker.more_token_s, worker.load_tokens, missing),
        may_keep=may_keep,
        rows=worker.rows,
        base_s=worker.rows_s,
        piece_token_s=worker.piece_token_s,
        coming_tokens_s=worker.coming_tokens_s,
        has_slot=has_slot,
    )
