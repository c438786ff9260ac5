"""Chooses the workers of a run: filter → score → pick over a snapshot of the linked workers. Pure.

Workers fit when their pair fingerprints are equal; a request is bound to one fingerprint (its *revision*) before it is
tokenised and never leaves it. Load is what the worker last reported plus what was sent to it since. What a worker has
cached of the prompt, by its own announcements, counts as tokens saved (`baton_wire.rules.worker_choice`).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from baton_gateway import errors
from baton_gateway.errors import Problem
from baton_gateway.workers.long_turn import LongTurn, own_token_s
from baton_gateway.workers.pool_load import prompt_token_s, view_prefill_side
from baton_gateway.workers.worker_view import WorkerView
from baton_wire.messages.values import Address, PairFingerprint, Role
from baton_wire.rules.context_placement import is_long, place_context
from baton_wire.rules.prompt_placement import DecodeSide, LatencyTargets, Placement, choose_placement
from baton_wire.rules.worker_choice import (
    DISPLACED_WEIGHT,
    MISSING_WEIGHT,
    SEQUENCE_TOKENS,
    WorkerOption,
    choose_worker,
)

MOVED_TOKENS = 1_024
"""A session has moved if at least this many of its tokens, and half of what is cached, are computed again for it."""
FULL: Final = 1 << 60
"""More than any load: a worker without room comes after all that have some."""
DECODE: Final = Role.DECODE
FOR_PROMPTS = 0.125
"""The share of a prefill worker's slots that is reserved for prompts; answers never take it."""


class MoveReason(enum.StrEnum):
    """Why a session does not go to the worker that has its context cached."""

    BUSY = "busy"
    """Other tokens wait there for longer than computing its context elsewhere takes."""
    FULL = "full"
    """The session's worker has no room."""
    FAILED = "failed"
    """The session's worker failed this request or others, or its step does not end."""
    LEAVING = "leaving"
    """The session's worker drains or is silent."""


class Route(msgspec.Struct, frozen=True):
    """The workers of a run, named by their epochs. `prefill` None: `decode` computes the prompt, too."""

    prefill: bytes | None
    decode: bytes
    decode_address: Address | None
    """Where `prefill` reaches `decode`; not None when `prefill` is given."""
    own_s: float = 0.0
    """Seconds that a prefill worker computes the prompt; 0 while no prompt step was seen: such a run never waits."""
    is_prefill_local: bool = False
    """`decode` is a prefill worker, where other prompts are queued."""
    is_encoded: bool = False
    """`decode` encodes the prompt: there is no answer."""
    missing_tokens: int | None = None
    """Tokens of the prompt that its worker probably has not cached; None: unknown, so all of them."""
    received_tokens: int | None = None
    """Tokens whose KV `decode` receives from `prefill`; None: unknown, so all of the prompt's."""
    best_cached_tokens: int = 0
    """Tokens of the prompt that some worker of the revision has cached, the most that any has."""
    moved: MoveReason | None = None
    """Why the prompt is not computed where most of it is cached; None: it is, or little is cached anywhere."""

    @property
    def is_decode_local(self) -> bool:
        """A decode worker computes the prompt, and prefill workers have no part in it."""
        return self.prefill is None and not self.is_prefill_local


class RouteQuery(msgspec.Struct, frozen=True):
    """A run that needs workers."""

    fingerprint: PairFingerprint
    tokens: int
    total_tokens: int
    choices: int
    avoid: frozenset[bytes]
    cached: Mapping[bytes, int] = msgspec.field(default_factory=dict)
    """Tokens of the prompt that each worker has cached, by epoch; those of a worker that is not listed: none."""
    tie: int = 0
    """A number of the prompt's whole context or of its session, that decides between equal workers."""
    retained_by: bytes | None = None
    """The prefill worker that retains the run's KV."""
    is_encoded: bool = False
    """The prompt is encoded, not answered."""
    waiting: int = 0
    """Prompts that wait at the gateway for prefill workers and are still in time."""

    @property
    def new_tokens(self) -> int:
        """Tokens of the prompt that no worker has cached."""
        return max(0, self.tokens - max(self.cached.values(), default=0))


@dataclass(frozen=True, slots=True)
class RoutePolicy:
    """When decode workers compute prompts. `disaggregate` False: always. `decode_locally`: while no prefill worker is
    usable. `targets`: where that meets these targets better (see `prompt_placement`).
    """

    disaggregate: bool = True
    decode_locally: bool = False
    targets: LatencyTargets | None = None


def revisions(workers: Sequence[WorkerView], served_name: str, policy: RoutePolicy) -> dict[PairFingerprint, int]:
    """The revisions under which this model can answer now, with the number of usable workers that decode."""
    usable = [
        worker for worker in workers if worker.served_name == served_name and worker.is_usable and worker.generates
    ]
    prefill = {worker.fingerprint for worker in usable if worker.role is Role.PREFILL}
    counts: dict[PairFingerprint, int] = {}
    for worker in usable:
        is_pair = worker.role is Role.DECODE and (worker.fingerprint in prefill or _may_go_local(policy))
        if is_pair or worker.keeps_answers:
            counts[worker.fingerprint] = counts.get(worker.fingerprint, 0) + 1
    return counts


def encoding_revisions(workers: Sequence[WorkerView], served_name: str) -> dict[PairFingerprint, int]:
    """The revisions under which this model can encode now, with the number of usable workers that do."""
    counts: dict[PairFingerprint, int] = {}
    for worker in workers:
        if worker.served_name == served_name and worker.is_usable and _encodes(worker):
            counts[worker.fingerprint] = counts.get(worker.fingerprint, 0) + 1
    return counts


def _encodes(worker: WorkerView) -> bool:
    return worker.encoding is not None and worker.role is Role.PREFILL


def pick(query: RouteQuery, workers: Sequence[WorkerView], policy: RoutePolicy) -> Route | Problem:
    """Choose the pair for a run, or the worker that encodes it."""
    if query.is_encoded:
        return _pick_encoder(query, workers)
    route = _pick_pair(query, workers, policy)
    if not query.cached or isinstance(route, Problem):
        return route
    moved = _find_move(query, route.prefill or route.decode, workers)
    return msgspec.structs.replace(route, best_cached_tokens=min(query.tokens, max(query.cached.values())), moved=moved)


def _pick_encoder(query: RouteQuery, workers: Sequence[WorkerView]) -> Route | Problem:
    fitting = [worker for worker in workers if worker.is_usable and worker.fingerprint == query.fingerprint]
    encoding = [worker for worker in fitting if _encodes(worker)]
    best = _best_that_holds(encoding, query)
    if best is None:
        return errors.too_long_for_workers() if encoding else errors.no_workers()
    own_s = query.tokens * prompt_token_s(best, fitting)
    return Route(None, best.epoch, None, own_s, is_prefill_local=True, missing_tokens=query.tokens, is_encoded=True)


def _find_move(query: RouteQuery, chosen: bytes, workers: Sequence[WorkerView]) -> MoveReason | None:
    """Why the prompt is not computed at the worker of the same role that has most of it cached."""
    role = next(worker.role for worker in workers if worker.epoch == chosen)
    same = [worker for worker in workers if worker.role is role and worker.epoch in query.cached]
    home = max(same, key=lambda worker: query.cached[worker.epoch], default=None)
    if home is None or home.epoch == chosen:
        return None
    most, there = min(query.cached[home.epoch], query.tokens), query.cached.get(chosen, 0)
    if most - there < max(MOVED_TOKENS, most // 2) or 2 * most < query.tokens:
        return None
    if not home.is_usable:
        return MoveReason.LEAVING
    option = _option(home, query)
    if option.is_last_resort:
        return MoveReason.FAILED
    return MoveReason.FULL if option.is_full else MoveReason.BUSY


def _pick_pair(query: RouteQuery, workers: Sequence[WorkerView], policy: RoutePolicy) -> Route | Problem:
    own = query.fingerprint
    fitting = [  # `is_usable`, without a call for each of hundreds
        worker
        for worker in workers
        if not (worker.is_draining or worker.is_suspect) and (worker.fingerprint is own or worker.fingerprint == own)
    ]
    decoding = [worker for worker in fitting if worker.role is Role.DECODE]
    decode = _best_that_holds(decoding, query)
    prefill = _best_that_holds([worker for worker in fitting if worker.role is Role.PREFILL], query)
    retaining = None
    if query.retained_by is not None:
        retaining = next((worker for worker in workers if worker.epoch == query.retained_by), None)
    if retaining is not None and not retaining.is_suspect:  # also if it drains; never to itself, if it has flipped
        others = [worker for worker in decoding if worker is not retaining]
        if (target := _best_that_holds(others, query)) is not None:
            return Route(retaining.epoch, target.epoch, target.pair_address)
    if decode is not None and policy.disaggregate and prefill is not None:
        missing = _missing(prefill, query)
        usual_s = prompt_token_s(prefill, fitting)
        own_s = missing * own_token_s(prefill.prompt_cost, missing, query.tokens, usual_s)
        match _place(query, prefill, decode, policy.targets):
            case Placement.DECODE_LOCAL:
                return _local(decode, query)
            case Placement.PREFILL_LOCAL:
                return Route(None, prefill.epoch, None, own_s, is_prefill_local=True, missing_tokens=missing)
            case Placement.DISAGGREGATED:
                received = _missing(decode, query)
                return Route(
                    prefill.epoch,
                    decode.epoch,
                    decode.pair_address,
                    own_s,
                    missing_tokens=missing,
                    received_tokens=received,
                )
    if decode is not None and _may_go_local(policy):
        return _local(decode, query)
    if decode is None and prefill is not None and _can_decode(prefill, query):
        return _local(prefill, query)
    if _would_fit_if_larger(fitting, query):
        return errors.too_long_for_workers()
    return errors.no_workers()


def _place(query: RouteQuery, prefill: WorkerView, decode: WorkerView, targets: LatencyTargets | None) -> Placement:
    """Where the prompt is computed and its answer decoded. Without targets every prompt is disaggregated."""
    if targets is None:
        return Placement.DISAGGREGATED
    if (placement := _place_long(query, prefill, decode, targets)) is not None:
        return placement
    may_decode, has_slot = _may_decode(prefill, query), _has_slot(prefill, query)
    missing, here = _missing(prefill, query), _missing(decode, query)
    prefill_side = view_prefill_side(prefill, missing, may_decode=may_decode, has_slot=has_slot)
    decode_side = DecodeSide(
        rows=decode.load_sequences,
        base_s=decode.rows_s,
        token_s=decode.piece_token_s,
        piece_fixed_s=decode.piece_fixed_s,
        recent_step_s=decode.recent_step_s,
        queued_tokens=decode.prompt_tokens,
        # What only the prefill worker has cached would be computed again here: it counts as in `choose_worker`.
        missing_tokens=here + (MISSING_WEIGHT - 1) * max(0, here - missing),
        coming_tokens_s=decode.coming_tokens_s,
        least_s=decode.least_rows_s,
        has_slot=decode.load_sequences < decode.max_sequences,
    )
    return choose_placement(prefill_side, decode_side, targets)


def _place_long(
    query: RouteQuery, prefill: WorkerView, decode: WorkerView, targets: LatencyTargets
) -> Placement | None:
    """Where a turn with a long context goes; None: it is short, or its costs are unknown."""
    missing = _missing(prefill, query), _missing(decode, query)
    turn = LongTurn(query.tokens, *missing, query.waiting, may_be_kept=_may_decode(prefill, query))
    own_s = turn.own_s(prefill, decode)
    if own_s is None or not is_long(own_s, targets) or (sides := turn.sides(prefill, decode)) is None:
        return None
    return place_context(*sides, own_s, targets, max(1, query.total_tokens - query.tokens))


def _local(worker: WorkerView, query: RouteQuery) -> Route:
    return Route(None, worker.epoch, None, missing_tokens=_missing(worker, query))


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


def _missing(worker: WorkerView, query: RouteQuery) -> int:
    """Tokens of the prompt that the worker would have to compute; at least one."""
    return max(1, query.tokens - query.cached.get(worker.epoch, 0))


def _may_go_local(policy: RoutePolicy) -> bool:
    return policy.decode_locally or not policy.disaggregate


def _can_hold(worker: WorkerView, query: RouteQuery) -> bool:
    tokens = query.total_tokens if worker.role is Role.DECODE else query.tokens
    blocks = -(-query.tokens // worker.block_tokens)
    return tokens <= worker.max_context_tokens and query.choices <= worker.max_choices and blocks <= worker.blocks_total


def _would_fit_if_larger(fitting: Sequence[WorkerView], query: RouteQuery) -> bool:
    """Return whether both roles have workers, but one role has only workers that are too small."""
    roles = {worker.role for worker in fitting}
    return roles == {Role.PREFILL, Role.DECODE} and {one.role for one in fitting if _can_hold(one, query)} != roles


def _best_that_holds(workers: Sequence[WorkerView], query: RouteQuery) -> WorkerView | None:
    """The worker that takes the prompt, of those that are large enough; usually all are."""
    best = _best(workers, query)
    if best is None or _can_hold(best, query):
        return best
    return _best([worker for worker in workers if _can_hold(worker, query)], query)


def _best(workers: Sequence[WorkerView], query: RouteQuery) -> WorkerView | None:
    """The worker that takes the prompt. Of those that have nothing of it cached only the least loaded come into
    question: a gateway may have hundreds of workers, and decides for every request."""
    candidates: list[WorkerView] = []
    equal: list[WorkerView] = []
    least = math.inf
    special, tokens, choices, new = query.cached.keys() | query.avoid, query.tokens, query.choices, query.new_tokens
    for worker in workers:
        free = worker.blocks_free
        if free is None or worker.is_stuck or worker.epoch in special:
            candidates.append(worker)
            continue
        # As in `_option`, without calls: a decision for hundreds of workers should take some 100 µs.
        block_tokens, load = worker.block_tokens, worker.load_tokens + int(worker.lately_tokens_s)
        empty = worker.blocks_empty
        if empty is not None and (displaced := new - empty * block_tokens) > 0:
            load += DISPLACED_WEIGHT * displaced
        is_full = free * block_tokens < tokens
        if worker.role is DECODE:
            sequences = worker.load_sequences
            load += (worker.blocks_total - free) * block_tokens + SEQUENCE_TOKENS * sequences
            is_full = is_full or sequences + choices > worker.max_sequences
        rank = load + FULL if is_full else load
        if rank < least:
            least, equal = rank, [worker]
        elif rank == least:
            equal.append(worker)
    candidates += equal
    return candidates[choose_worker([_option(one, query) for one in candidates], query.tie)] if candidates else None


def _has_slots(worker: WorkerView, query: RouteQuery) -> bool:
    """False for a decode worker where the run waits until an answer ends, however much of its prompt is cached."""
    return worker.role is not Role.DECODE or worker.load_sequences + query.choices <= worker.max_sequences


def _option(worker: WorkerView, query: RouteQuery) -> WorkerOption:
    missing = max(0, query.tokens - query.cached.get(worker.epoch, 0))
    has_room = worker.blocks_free is None or worker.blocks_free * worker.block_tokens >= missing
    return WorkerOption(
        missing,
        worker.load_tokens + (worker.held_tokens if worker.role is Role.DECODE else 0),
        worker.load_sequences if worker.role is Role.DECODE else 0,
        worker.lately_tokens_s,
        worker.seed,
        worker.displaced_tokens(query.new_tokens),
        worker.epoch in query.avoid or worker.is_stuck,
        not has_room or not _has_slots(worker, query),
    )
