"""The promises of accepted prompts: places that the worker will have cached once it has computed or received them.

They are derived from the books each time places are taken, so no path by which a request ends can forget one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from baton_engine.memory.place_journal import PlaceJournal
from baton_engine.scheduling.engine_state import EngineState
from baton_engine.scheduling.sequence import Request, SharedPrefix, SharedPrefixStage
from baton_wire.messages.values import RequestKey

MOST_PROMPTS: Final = 256
"""Prompts with promises at once, the earliest first: what waits longer may still go elsewhere."""
MOST_BLOCKS: Final = 4_096
"""Blocks whose digests one update computes: the engine thread does nothing else meanwhile."""
_COMING: Final = frozenset(
    {
        SharedPrefixStage.WAITING,
        SharedPrefixStage.QUEUED,
        SharedPrefixStage.RESERVED,
        SharedPrefixStage.PREFILLING,
        SharedPrefixStage.BRANCHING,
    }
)


@dataclass(slots=True)
class PromisedPlaces:
    """The promises of one engine's accepted prompts."""

    _promised: dict[RequestKey, tuple[Request, list[bytes]]] = field(default_factory=dict)
    """Request and the digests that were promised for it."""

    def update(self, state: EngineState, journal: PlaceJournal) -> None:
        """Withdraw the promises of prompts that are computed or over, and make those of newly accepted ones."""
        coming = {key: request for key, request in state.requests.items() if _is_coming(request, state)}
        for key, (request, digests) in list(self._promised.items()):
            if coming.get(key) is not request:
                journal.withdraw_promise(digests)
                del self._promised[key]
        block_tokens, blocks = state.config.block_tokens, 0
        for key, request in coming.items():
            if len(self._promised) >= MOST_PROMPTS or blocks >= MOST_BLOCKS:
                break
            if key in self._promised or (prefix := request.prefix) is None:
                continue
            blocks += len(prefix.tokens) // block_tokens - len(prefix.digests)
            prefix.fill_digests(block_tokens)
            first = journal.promise(prefix.digests, request.root)
            self._promised[key] = request, prefix.digests[first:]


def _is_coming(request: Request, state: EngineState) -> bool:
    prefix = request.prefix
    if prefix is None or request.is_stopped or not (state.config.prefix_cache and prefix.is_published):
        return False
    return prefix.stage in _COMING and bool(prefix.tokens) and _has_full_block_left(prefix, state.config.block_tokens)


def _has_full_block_left(prefix: SharedPrefix, block_tokens: int) -> bool:
    return prefix.done_tokens // block_tokens < len(prefix.tokens) // block_tokens
