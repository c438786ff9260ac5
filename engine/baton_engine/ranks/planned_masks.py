"""The masks of a rank's draws: they are computed in the worker's process and come after the plan that they belong to.

Grammars are compiled there too, once for all ranks. A compilation has a time limit, and a grammar that reaches it at
one rank alone would make the ranks draw different tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from baton_engine.collectives.collective import RankLostError
from baton_engine.grammars.row_masks import RowConstraints
from baton_engine.grammars.token_masks import TokenMasks
from baton_engine.ranks.rank_frames import StepMasks
from baton_engine.scheduling.step_plan import OpenSlot, SlotTokens

FREE = RowConstraints(None, ())


class PlannedMasks:
    """Implements `DrawMasks` for the plan that is being carried out."""

    def __init__(self, receive: Callable[[], StepMasks]) -> None:
        """`receive` waits for the masks of the present plan."""
        self._receive = receive
        self._is_awaited = False

    def begin(self, *, is_masked: bool) -> None:
        """Begin a plan. `is_masked`: masks follow. Raises RankLostError when the last plan's were never asked for."""
        if self._is_awaited:
            raise RankLostError("masks came for a step that draws nothing")
        self._is_awaited = is_masked

    def open(self, opened: OpenSlot) -> None:
        """Do nothing: the worker's process opens the row."""

    def close(self, slots: Iterable[int]) -> None:
        """Do nothing, as `open` does."""

    def take_drawn(self, tokens: Iterable[SlotTokens]) -> None:
        """Do nothing: the worker's process gets the tokens by the result."""

    def bind(self, slots: Sequence[int]) -> bool:
        return self._is_awaited

    def constraints(self, slots: Sequence[int]) -> RowConstraints:
        masks = self._receive()
        self._is_awaited = False
        if not masks.slots:
            return FREE
        place_of = {slot: place for place, slot in enumerate(slots)}
        places = np.array([place_of[slot] for slot in masks.slots], dtype=np.int64)
        words = np.frombuffer(masks.words, dtype=np.uint32).reshape(len(masks.slots), -1)
        order = np.argsort(places)
        return RowConstraints(TokenMasks.of(places[order], np.ascontiguousarray(words[order])), ())
