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
from baton_gateway.workers.affinity import PrefixAffinity
from baton_gateway.workers.pool_load import prefill_side, token_s
from baton_gateway.workers.worker_view import WorkerView
from baton_wire.messages.values import Address, PairFingerprint, Role
from baton_wire.rules.prompt_placement import DecodeSide, LatencyTargets, Placement, placement

FOR_PROMPTS = 0.125
"""Of a prefill worker's slots, those that answers never take: prompts are computed in them."""
SEQUENCE_COST_TOKENS = 64
"""One more sequence on a decode worker weighs as much as so many prompt tokens that it would have to receive."""


@dataclass(frozen=True, slots=True)
class Route:
    """Who does it. `prefill` None: the decode worker prefills by itself."""

    prefill: bytes | None
    """Epochs name workers."""
    decode: bytes
    decode_address: Address | None
    """Where `prefill` reaches `decode`; not None when `prefill` is given."""
    own_s: float = 0.0
    """Seconds that a prefill worker computes it; 0 while no prompt step was seen, when nothing waits by it."""
    is_kept: bool = False
    """`decode` is a prefill worker, where other prompts are in line."""
    missing_tokens: int | None = None
    """Of the prompt, what whoever computes it probably does not hold yet; None: nobody looked, so all of it."""

    @property
    def is_local(self) -> bool:
        """A decode worker computes the prompt: prefill workers have nothing to do with it."""
        return self.prefill is None and not self.is_kept


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
    usable = [worker for worker in workers if worker.served_name == served_name and worker.is_usable]
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
    fitting = [worker for worker in workers if worker.fingerprint == query.fingerprint and worker.is_usable]
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
        own_s = missing * token_s(prefill, fitting)
        match _placement(query, prefill, decode, affinity, policy.targets):
            case Placement.HERE:
                return _local(decode, query, affinity)
            case Placement.KEPT:
                return Route(None, prefill.epoch, None, own_s, is_kept=True, missing_tokens=missing)
            case Placement.HANDED_OVER:
                return Route(prefill.epoch, decode.epoch, decode.pair_address, own_s, missing_tokens=missing)
    if decode is not None and _may_go_local(policy):
        return _local(decode, query, affinity)
    if decode is None and prefill is not None and _can_keep(prefill, query):
        return _local(prefill, query, affinity)
    if _would_fit_if_larger(fitting, large):
        return errors.too_long_for_workers()
    return errors.no_workers()


def _placement(
    query: RouteQuery, prefill: WorkerView, decode: WorkerView, affinity: PrefixAffinity, targets: LatencyTargets | None
) -> Placement:
    """Without targets every prompt is handed over."""
    if targets is None:
        return Placement.HANDED_OVER
    may_keep, has_slot = _may_keep(prefill, query), _has_slot(prefill, query)
    there = prefill_side(prefill, _missing(prefill, query, affinity), may_keep=may_keep, has_slot=has_slot)
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
