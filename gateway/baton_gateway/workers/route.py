"""Chooses the workers of a run: filter → score → pick over a snapshot of the linked workers. Pure; ties are broken by a
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
from baton_gateway.workers.pool_load import prompt_token_s, view_prefill_side
from baton_gateway.workers.worker_view import WorkerView
from baton_wire.messages.values import Address, PairFingerprint, Role
from baton_wire.rules.prompt_placement import DecodeSide, LatencyTargets, Placement, choose_placement

FOR_PROMPTS = 0.125
"""The share of a prefill worker's slots that is reserved for prompts; answers never take it."""
SEQUENCE_COST_TOKENS = 64
"""One more sequence on a decode worker weighs as much as this many prompt tokens that it would have to receive."""


@dataclass(frozen=True, slots=True)
class Route:
    """The workers of a run, named by their epochs. `prefill` None: `decode` computes the prompt, too."""

    prefill: bytes | None
    decode: bytes
    decode_address: Address | None
    """Where `prefill` reaches `decode`; not None when `prefill` is given."""
    own_s: float = 0.0
    """Seconds that a prefill worker computes the prompt; 0 while no prompt step was seen: such a run never waits."""
    is_prefill_local: bool = False
    """`decode` is a prefill worker, where other prompts are queued."""
    missing_tokens: int | None = None
    """Tokens of the prompt that its worker probably has not cached; None: unknown, so all of them."""

    @property
    def is_decode_local(self) -> bool:
        """A decode worker computes the prompt, and prefill workers have no part in it."""
        return self.prefill is None and not self.is_prefill_local


@dataclass(frozen=True, slots=True)
class RouteQuery:
    """A run that needs workers."""

    fingerprint: PairFingerprint
    tokens: int
    total_tokens: int
    choices: int
    avoid: frozenset[bytes]
    prefix: tuple[bytes, ...] = ()
    """Chained hashes of the prompt's beginning, shortest first (see `affinity`)."""
    retained_by: bytes | None = None
    """The prefill worker that retains the run's KV."""


@dataclass(frozen=True, slots=True)
class RoutePolicy:
    """When decode workers compute prompts. `disaggregate` False: always. `decode_locally`: while no prefill worker is
    usable. `targets`: where that meets these targets better (see `prompt_placement`).
    """

    disaggregate: bool = True
    decode_locally: bool = False
    targets: LatencyTargets | None = None


def revisions(workers: Sequence[WorkerView], served_name: str, policy: RoutePolicy) -> dict[PairFingerprint, int]:
    """The revisions under which this model can be served now, with the number of usable workers that decode."""
    usable = [worker for worker in workers if worker.served_name == served_name and worker.is_usable]
    prefill = {worker.fingerprint for worker in usable if worker.role is Role.PREFILL}
    counts: dict[PairFingerprint, int] = {}
    for worker in usable:
        is_pair = worker.role is Role.DECODE and (worker.fingerprint in prefill or _may_go_local(policy))
        if is_pair or worker.keeps_answers:
            counts[worker.fingerprint] = counts.get(worker.fingerprint, 0) + 1
    return counts


def pick(
    query: RouteQuery, workers: Sequence[WorkerView], policy: RoutePolicy, affinity: PrefixAffinity, draw: float
) -> Route | Problem:
    """Choose the pair for a run. `draw` in [0, 1) breaks ties."""
    fitting = [worker for worker in workers if worker.fingerprint == query.fingerprint and worker.is_usable]
    large = [worker for worker in fitting if _can_hold(worker, query)]
    decode = _best([worker for worker in large if worker.role is Role.DECODE], query, affinity, draw)
    prefill = _best([worker for worker in large if worker.role is Role.PREFILL], query, affinity, draw)
    retaining = next((worker for worker in workers if worker.epoch == query.retained_by), None)
    if retaining is not None and not retaining.is_suspect:  # also if it drains; never to itself, if it has flipped
        others = [worker for worker in large if worker.role is Role.DECODE and worker is not retaining]
        if (target := _best(others, query, affinity, draw)) is not None:
            return Route(retaining.epoch, target.epoch, target.pair_address)
    if decode is not None and policy.disaggregate and prefill is not None:
        missing = _missing(prefill, query, affinity)
        own_s = missing * prompt_token_s(prefill, fitting)
        match _place(query, prefill, decode, affinity, policy.targets):
            case Placement.DECODE_LOCAL:
                return _local(decode, query, affinity)
            case Placement.PREFILL_LOCAL:
                return Route(None, prefill.epoch, None, own_s, is_prefill_local=True, missing_tokens=missing)
            case Placement.DISAGGREGATED:
                return Route(prefill.epoch, decode.epoch, decode.pair_address, own_s, missing_tokens=missing)
    if decode is not None and _may_go_local(policy):
        return _local(decode, query, affinity)
    if decode is None and prefill is not None and _can_decode(prefill, query):
        return _local(prefill, query, affinity)
    if _would_fit_if_larger(fitting, large):
        return errors.too_long_for_workers()
    return errors.no_workers()


def _place(
    query: RouteQuery, prefill: WorkerView, decode: WorkerView, affinity: PrefixAffinity, targets: LatencyTargets | None
) -> Placement:
    """Where the prompt is computed and its answer decoded. Without targets every prompt is disaggregated."""
    if targets is None:
        return Placement.DISAGGREGATED
    may_decode, has_slot = _may_decode(prefill, query), _has_slot(prefill, query)
    missing = _missing(prefill, query, affinity)
    prefill_side = view_prefill_side(prefill, missing, may_decode=may_decode, has_slot=has_slot)
    decode_side = DecodeSide(
        rows=decode.load_sequences,
        base_s=decode.rows_s,
        token_s=decode.piece_token_s,
        queued_tokens=decode.prompt_tokens,
        missing_tokens=_missing(decode, query, affinity),
        coming_tokens_s=decode.coming_tokens_s,
        least_s=decode.least_rows_s,
        has_slot=decode.load_sequences < decode.max_sequences,
    )
    return choose_placement(prefill_side, decode_side, targets)


def _local(worker: WorkerView, query: RouteQuery, affinity: PrefixAffinity) -> Route:
    return Route(None, worker.epoch, None, missing_tokens=_missing(worker, query, affinity))


def _can_decode(prefill: WorkerView, query: RouteQuery) -> bool:
    return prefill.keeps_answers and query.total_tokens <= prefill.max_context_tokens


def _may_decode(prefill: WorkerView, query: RouteQuery) -> bool:
    """Return whether its rows leave room for arriving prompts: half of the slots, and blocks for the whole answer."""
    return _has_slot(prefill, query) and 2 * (prefill.rows + query.choices) <= prefill.max_sequences


def _has_slot(prefill: WorkerView, query: RouteQuery) -> bool:
    """Return whether it has a slot besides those that are reserved for prompts, and blocks for the answer."""
    blocks = -(-query.total_tokens // prefill.block_tokens)
    has_blocks = prefill.blocks_free is None or prefill.blocks_free >= blocks
    taken = prefill.load_sequences + query.choices
    return _can_decode(prefill, query) and taken <= (1.0 - FOR_PROMPTS) * prefill.max_sequences and has_blocks


def _missing(worker: WorkerView, query: RouteQuery, affinity: PrefixAffinity) -> int:
    """Tokens of the prompt that the worker would have to compute; at least one."""
    return max(1, query.tokens - min(query.tokens, affinity.known_tokens(worker.epoch, query.prefix)))


def _may_go_local(policy: RoutePolicy) -> bool:
    return policy.decode_locally or not policy.disaggregate


def _can_hold(worker: WorkerView, query: RouteQuery) -> bool:
    tokens = query.total_tokens if worker.role is Role.DECODE else query.tokens
    blocks = -(-query.tokens // worker.block_tokens)
    return tokens <= worker.max_context_tokens and query.choices <= worker.max_choices and blocks <= worker.blocks_total


def _would_fit_if_larger(fitting: Sequence[WorkerView], large: Sequence[WorkerView]) -> bool:
    """Return whether both roles have workers, but one role has only workers that are too small."""
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
    """(avoided, full, work until this run is served): smaller is better."""
    missing = query.tokens - min(query.tokens, affinity.known_tokens(worker.epoch, query.prefix))
    blocks = -(-missing // worker.block_tokens)
    is_full = worker.blocks_free is not None and worker.blocks_free < blocks
    if worker.role is Role.DECODE and worker.load_sequences + query.choices > worker.max_sequences:
        is_full = True  # it waits until a whole answer ends, however much of its prompt is cached
    sequences = worker.load_sequences * SEQUENCE_COST_TOKENS if worker.role is Role.DECODE else 0
    return worker.epoch in query.avoid, is_full, float(worker.load_tokens + missing + sequences)
