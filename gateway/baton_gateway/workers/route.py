"""Which workers take a run: filter → score → pick over a snapshot of the linked workers. Pure; ties are broken by a
passed-in draw.

Workers fit when their pair fingerprints are equal; a request is bound to one fingerprint (its *revision*) before it is
tokenised and never leaves it. Load is what the worker last reported plus what was sent to it since. A prefix that a
worker probably still holds counts as tokens saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from baton_gateway import errors
from baton_gateway.errors import Problem
from baton_gateway.requests.request_events import Route
from baton_gateway.requests.waiting_line import PoolService
from baton_gateway.workers.affinity import PrefixAffinity
from baton_wire.messages.values import Address, PairFingerprint, Role
from baton_wire.rules.prompt_order import BUSY_S, busy_s
from baton_wire.rules.prompt_placement import DecodeSide, LatencyTargets, Placement, PrefillSide, placement, prompts_s

FULL_S = 0.1
"""A wait for slots that is shorter may be that for the next step."""
FOR_PROMPTS = 0.125
"""Of a prefill worker's slots, those that answers never take: prompts are computed in them."""
APART_S = 5.0
"""A worker whose own line is so much longer than another's is stuck, or does not say what is so."""
SEQUENCE_COST_TOKENS = 64
"""One more sequence on a decode worker weighs as much as so many prompt tokens that it would have to receive."""


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A linked worker as routing sees it."""

    epoch: bytes
    role: Role
    served_name: str
    fingerprint: PairFingerprint
    pair_address: Address | None
    """Where prefill workers reach it; a decode worker has one."""
    max_context_tokens: int
    max_choices: int
    block_tokens: int
    blocks_total: int
    blocks_free: int | None
    """None: not reported yet."""
    load_sequences: int = 0
    """Running, waiting, and sent since the last report."""
    load_tokens: int = 0
    """Prompt tokens still to be computed or received."""
    prompt_tokens: int = 0
    """Of these, the ones to be computed."""
    running: int = 0
    """Sequences at the last report."""
    waiting: int = 0
    """Requests that wait there for slots or blocks: those of the last report, and sent since if there were any, or
    beyond its slots."""
    max_sequences: int = 1
    rows: int = 0
    """Sequences that decoded in its last step."""
    keeps_answers: bool = False
    """A prefill worker that also decodes what it prefilled."""
    is_draining: bool = False
    is_suspect: bool = False
    token_s: float | None = None
    """Seconds per prompt token; None: no prompt step was seen."""
    more_token_s: float | None = None
    """Seconds that one more token adds to a step."""
    step_s: float = 0.0
    rows_s: float | None = None
    """A step of a decode worker's rows without prompts; None: not seen."""
    least_rows_s: float | None = None
    """The shortest such step that was seen."""
    piece_token_s: float | None = None
    """What a prompt token adds to such a step; None: not seen."""
    coming_tokens_s: float = 0.0
    """Prompt tokens a second that come to it to be computed."""
    gateways: int = 1
    """Processes that send to it, as it told."""


@dataclass(frozen=True, slots=True)
class RouteQuery:
    """What a run needs."""

    fingerprint: PairFingerprint
    tokens: int
    total_tokens: int
    choices: int
    avoid: frozenset[bytes]
    prefix: tuple[bytes, ...] = ()
    """Chained hashes of the prompt's beginning, shortest first (see `affinity`)."""
    kept: bytes | None = None
    """The prefill worker that has the KV already."""


@dataclass(frozen=True, slots=True)
class RoutePolicy:
    """`disaggregate` False: decode workers prefill for themselves. `decode_locally`: they also do when no prefill
    worker is there. `targets`: they also do when that serves these better (see `prompt_placement`).
    """

    disaggregate: bool = True
    decode_locally: bool = False
    targets: LatencyTargets | None = None


def revisions(workers: Sequence[WorkerView], served_name: str, policy: RoutePolicy) -> dict[PairFingerprint, int]:
    """Fingerprints under which this model can be served now, with the number of usable workers that decode."""
    usable = [worker for worker in workers if worker.served_name == served_name and _is_usable(worker)]
    prefill = {worker.fingerprint for worker in usable if worker.role is Role.PREFILL}
    found: dict[PairFingerprint, int] = {}
    for worker in usable:
        is_pair = worker.role is Role.DECODE and (worker.fingerprint in prefill or _may_go_local(policy))
        if is_pair or worker.keeps_answers:
            found[worker.fingerprint] = found.get(worker.fingerprint, 0) + 1
    return found


def pick(
    query: RouteQuery, workers: Sequence[WorkerView], policy: RoutePolicy, affinity: PrefixAffinity, draw: float
) -> Route | Problem:
    """Choose the pair for a run. `draw` in [0, 1) breaks ties."""
    fitting = [worker for worker in workers if worker.fingerprint == query.fingerprint and _is_usable(worker)]
    large = [worker for worker in fitting if _can_hold(worker, query)]
    decode = _best([worker for worker in large if worker.role is Role.DECODE], query, affinity, draw)
    prefill = _best([worker for worker in large if worker.role is Role.PREFILL], query, affinity, draw)
    kept = next((each for each in workers if each.epoch == query.kept and not each.is_suspect), None)
    if kept is not None:  # a draining one too: it finishes what it has; one that flipped hands nothing to itself
        others = [worker for worker in large if worker.role is Role.DECODE and worker is not kept]
        if (there := _best(others, query, affinity, draw)) is not None:
            return Route(kept.epoch, there.epoch, there.pair_address)
    if decode is not None and policy.disaggregate and prefill is not None:
        missing = _missing(prefill, query, affinity)
        own_s = missing * _token_s(prefill, fitting)
        match _placement(query, prefill, decode, affinity, policy.targets):
            case Placement.DECODE_LOCAL:
                return _local(decode, query, affinity)
            case Placement.PREFILL_LOCAL:
                return Route(None, prefill.epoch, None, own_s, is_kept=True, missing_tokens=missing)
            case Placement.DISAGGREGATED:
                return Route(prefill.epoch, decode.epoch, decode.pair_address, own_s, missing_tokens=missing)
    if decode is not None and _may_go_local(policy):
        return _local(decode, query, affinity)
    if decode is None and prefill is not None and _can_keep(prefill, query):
        return _local(prefill, query, affinity)
    if _would_fit_if_larger(fitting, large):
        return errors.too_long_for_workers()
    return errors.no_workers()


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
    return sum(1 / worker.gateways for worker in prefill if _is_usable(worker))


def num_slots(workers: Sequence[WorkerView], fingerprint: PairFingerprint) -> int:
    """Sequences that the revision's decode workers run at once."""
    return sum(worker.max_sequences for worker in _usable(workers, Role.DECODE, fingerprint))


def least_prompts_s(workers: Sequence[WorkerView], fingerprint: PairFingerprint, tpot_s: float | None) -> float:
    """Seconds that the prefill worker with the least to do computes what it has; 0 if unknown."""
    usable = _usable(workers, Role.PREFILL, fingerprint)
    return min((_work_s(worker, usable, tpot_s) for worker in usable), default=0.0)


def _usable(workers: Sequence[WorkerView], role: Role, fingerprint: PairFingerprint) -> list[WorkerView]:
    fitting = (each for each in workers if each.role is role and each.fingerprint == fingerprint)
    return [worker for worker in fitting if _is_usable(worker)]


def pool_services(
    workers: Sequence[WorkerView], served_name: str, output_tokens: float
) -> tuple[PoolService, PoolService]:
    """How the prefill and the decode workers of a model serve now, by what they reported.

    A prefill pool serves as many tokens a second as its workers' own steps took. A decode worker makes one token a
    step for each running sequence; it limits only where it has let others wait. Workers far behind the others of their
    pool count for nothing, neither what they have nor what they serve.
    """
    usable = [each for each in workers if each.served_name == served_name and _is_usable(each)]
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


def _token_s(worker: WorkerView, others: Sequence[WorkerView]) -> float:
    """Seconds per prompt token; until its first step as other prefill workers take, 0 while none was seen of any."""
    if worker.token_s is not None:
        return worker.token_s
    known = [each.token_s for each in others if each.role is Role.PREFILL and each.token_s is not None]
    return sum(known) / max(1, len(known))


def _work_s(worker: WorkerView, others: Sequence[WorkerView], tpot_s: float | None) -> float:
    """Seconds until it has computed the prompts that it has; 0 if unknown."""
    if tpot_s is None or not worker.rows:
        return worker.load_tokens * _token_s(worker, others)
    return prompts_s(_prefill_side(worker, 0), worker.load_tokens, tpot_s) or 0.0


def _prefill_side(worker: WorkerView, missing: int, *, may_keep: bool = False, has_slot: bool = False) -> PrefillSide:
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


def _placement(
    query: RouteQuery, prefill: WorkerView, decode: WorkerView, affinity: PrefixAffinity, targets: LatencyTargets | None
) -> Placement:
    """Without targets every prompt is handed over."""
    if targets is None:
        return Placement.DISAGGREGATED
    may_keep, has_slot = _may_keep(prefill, query), _has_slot(prefill, query)
    there = _prefill_side(prefill, _missing(prefill, query, affinity), may_keep=may_keep, has_slot=has_slot)
    here = DecodeSide(
        *(decode.load_sequences, decode.rows_s, decode.piece_token_s, decode.prompt_tokens),
        missing_tokens=_missing(decode, query, affinity),
        coming_tokens_s=decode.coming_tokens_s,
        least_s=decode.least_rows_s,
        has_slot=decode.load_sequences < decode.max_sequences,
    )
    return placement(there, here, targets)


def _local(worker: WorkerView, query: RouteQuery, affinity: PrefixAffinity) -> Route:
    return Route(None, worker.epoch, None, missing_tokens=_missing(worker, query, affinity))


def _can_keep(prefill: WorkerView, query: RouteQuery) -> bool:
    return prefill.keeps_answers and query.total_tokens <= prefill.max_context_tokens


def _may_keep(prefill: WorkerView, query: RouteQuery) -> bool:
    """Rows leave room for the prompts that come: half of the slots, and as many blocks as the answer may need."""
    return _has_slot(prefill, query) and 2 * (prefill.rows + query.choices) <= prefill.max_sequences


def _has_slot(prefill: WorkerView, query: RouteQuery) -> bool:
    """It has slots besides those that prompts need while they are computed, and blocks for the answer."""
    blocks = -(-query.total_tokens // prefill.block_tokens)
    has_blocks = prefill.blocks_free is None or prefill.blocks_free >= blocks
    taken = prefill.load_sequences + query.choices
    return _can_keep(prefill, query) and taken <= (1.0 - FOR_PROMPTS) * prefill.max_sequences and has_blocks


def _missing(worker: WorkerView, query: RouteQuery, affinity: PrefixAffinity) -> int:
    """Tokens that a worker would have to compute; at least one."""
    return max(1, query.tokens - min(query.tokens, affinity.known_tokens(worker.epoch, query.prefix)))


def _is_usable(worker: WorkerView) -> bool:
    return not worker.is_draining and not worker.is_suspect


def _may_go_local(policy: RoutePolicy) -> bool:
    return policy.decode_locally or not policy.disaggregate


def _can_hold(worker: WorkerView, query: RouteQuery) -> bool:
    tokens = query.total_tokens if worker.role is Role.DECODE else query.tokens
    blocks = -(-query.tokens // worker.block_tokens)
    return tokens <= worker.max_context_tokens and query.choices <= worker.max_choices and blocks <= worker.blocks_total


def _would_fit_if_larger(fitting: Sequence[WorkerView], large: Sequence[WorkerView]) -> bool:
    """Every role is there, and one of them only with workers that are too small."""
    roles = {worker.role for worker in fitting}
    return roles == {Role.PREFILL, Role.DECODE} and {worker.role for worker in large} != roles


def _best(workers: Sequence[WorkerView], query: RouteQuery, affinity: PrefixAffinity, draw: float) -> WorkerView | None:
    if not workers:
        return None
    scores = [(_score(worker, query, affinity), place) for place, worker in enumerate(workers)]
    best = min(score for score, _ in scores)
    equal = [place for score, place in scores if score == best]
    return workers[equal[int(draw * len(equal))]]


def _score(worker: WorkerView, query: RouteQuery, affinity: PrefixAffinity) -> tuple[bool, bool, float]:
    """Smaller is better: not avoided, has room now, least work until this run is served."""
    missing = query.tokens - min(query.tokens, affinity.known_tokens(worker.epoch, query.prefix))
    blocks = -(-missing // worker.block_tokens)
    is_full = worker.blocks_free is not None and worker.blocks_free < blocks
    if worker.role is Role.DECODE and worker.load_sequences + query.choices > worker.max_sequences:
        is_full = True  # it waits there until a whole answer ends, however much of its prompt is there
    sequences = worker.load_sequences * SEQUENCE_COST_TOKENS if worker.role is Role.DECODE else 0
    return worker.epoch in query.avoid, is_full, float(worker.load_tokens + missing + sequences)
