"""Reserve blocks for KV that other workers send: all or none, in the order of turns."""

from __future__ import annotations

from baton_engine.scheduling.engine_state import EngineState, may_reserve_slots, may_take_slots
from baton_engine.scheduling.events import Queued, Reserved
from baton_engine.scheduling.sequence import SharedPrefix, SharedPrefixStage


def grant_reservations(state: EngineState) -> None:
    """Grant from the head of the queue while there is room.

    A preempted sequence or a prompt that lacked blocks goes first if its turn is earlier.
    """
    has_granted = False
    state.over_share = sum(not may_take_slots(state, prefix) for prefix in state.landed)
    over_share: set[bytes] = set()
    for prefix in tuple(state.queued.values()):
        flow = prefix.request.flow
        if flow in over_share or not may_reserve_slots(state, prefix):
            over_share.add(flow)
            state.over_share += 1
            continue
        if state.preempted and state.preempted[0].order < prefix.order:
            break
        blocked = state.blocked
        if blocked is not None and blocked.stage is SharedPrefixStage.WAITING and blocked.order < prefix.order:
            break
        if not _grant(state, prefix):
            break
        has_granted = True
    if has_granted:
        report_positions(state)


def _grant(state: EngineState, prefix: SharedPrefix) -> bool:
    """Take all blocks or none. Hits may cover even the last token, because nothing is computed here."""
    pool, config, watermark = state.pool, state.config, state.watermark
    if prefix.failed_at == (pool.gains, watermark):
        return False
    prefix.fill_digests(config.block_tokens)
    first = config.first_blocks(len(prefix.tokens))  # decoding attends to nothing before it
    hits = pool.match(prefix.digests, len(prefix.digests), first) if config.prefix_cache else []
    cached = len(hits) // pool.groups
    blocks = config.blocks_for(len(prefix.tokens))
    missing = sum(blocks - max(cached, index) for index in first)
    if pool.available - pool.evictable(hits) - missing < watermark:
        prefix.failed_at = (pool.gains, watermark)
        return False
    del state.queued[prefix.request.key]
    prefix.stage = SharedPrefixStage.RESERVED
    state.awaiting_slots[prefix.request.key] = prefix
    pool.share(prefix.owner, hits)
    pool.allocate(prefix.owner, blocks - cached, reserved=True, first=first)
    prefix.cached_tokens = prefix.done_tokens = cached * config.block_tokens
    prefix.request.is_announced = True
    state.turns.began(prefix.request.start_tag, prefix.request.cost)
    state.prompt_tokens += len(prefix.tokens)
    state.cached_prompt_tokens += prefix.cached_tokens
    state.events.append(Reserved(prefix.request.key, prefix.cached_tokens, tuple(pool.table(prefix.owner))))
    return True


def report_positions(state: EngineState) -> None:
    """Report each waiting reservation's position when it is queued and whenever the position has halved since."""
    for position, prefix in enumerate(state.queued.values()):
        reported = prefix.request.reported_position
        if reported is None or position * 2 <= reported != position:
            prefix.request.reported_position = position
            state.events.append(Queued(prefix.request.key, position))
