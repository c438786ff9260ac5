"""Room for KV that other workers send: whole or not at all, in the order of turns."""

from __future__ import annotations

from baton_engine.scheduling.engine_state import EngineState, may_promise_slots, may_take_slots
from baton_engine.scheduling.events import Queued, Reserved
from baton_engine.scheduling.sequence import Stem, StemStage


def grant_reservations(state: EngineState) -> None:
    """Grant from the head of the queue while there is room.

    A preempted sequence, or a prompt that lacked blocks, comes first if its turn does.
    """
    is_shorter = False
    state.over_share = sum(not may_take_slots(state, stem) for stem in state.landed)
    over_share: set[bytes] = set()
    for stem in tuple(state.queued.values()):
        flow = stem.request.flow
        if flow in over_share or not may_promise_slots(state, stem):
            over_share.add(flow)
            state.over_share += 1
            continue
        if state.returning and state.returning[0].order < stem.order:
            break
        starved = state.starved
        if starved is not None and starved.stage is StemStage.WAITING and starved.order < stem.order:
            break
        if not _grant(state, stem):
            break
        is_shorter = True
    if is_shorter:
        report_positions(state)


def _grant(state: EngineState, stem: Stem) -> bool:
    """Take all blocks or none. A hit on whole blocks counts even for the last token: nothing is computed here."""
    pool, config, floor = state.pool, state.config, state.floor
    if stem.failed_at == (pool.gains, floor):
        return False
    stem.fill_digests(config.block_tokens)
    first = config.first_blocks(len(stem.tokens))  # nothing before it is computed from here
    hits = pool.match(stem.digests, len(stem.digests), first) if config.prefix_cache else []
    cached = len(hits) // pool.groups
    blocks = config.blocks_for(len(stem.tokens))
    missing = sum(blocks - max(cached, index) for index in first)
    if pool.available - pool.evictable(hits) - missing < floor:
        stem.failed_at = (pool.gains, floor)
        return False
    del state.queued[stem.request.key]
    stem.stage = StemStage.RESERVED
    state.promised[stem.request.key] = stem
    pool.share(stem.owner, hits)
    pool.allocate(stem.owner, blocks - cached, reserved=True, first=first)
    stem.cached_tokens = stem.done_tokens = cached * config.block_tokens
    stem.request.is_announced = True
    state.turns.began(stem.request.start_tag, stem.request.cost)
    state.prompt_tokens += len(stem.tokens)
    state.cached_prompt_tokens += stem.cached_tokens
    state.events.append(Reserved(stem.request.key, stem.cached_tokens, tuple(pool.table(stem.owner))))
    return True


def report_positions(state: EngineState) -> None:
    """Tell each waiting reservation its position when first queued and whenever the position has halved since."""
    for position, stem in enumerate(state.queued.values()):
        reported = stem.request.reported_position
        if reported is None or position * 2 <= reported != position:
            stem.request.reported_position = position
            state.events.append(Queued(stem.request.key, position))
