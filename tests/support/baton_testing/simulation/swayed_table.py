"""A gateway's workers whose costs are drawn: whatever is measured, prompts and answers go everywhere in some world."""

from __future__ import annotations

import random

import msgspec

from baton_gateway.workers.linked_workers import WorkerTable
from baton_gateway.workers.worker_view import WorkerView


class SwayedTable(WorkerTable):
    """Workers whose steps seem to take something else with each look: so prompts and answers go everywhere."""

    def __init__(self, tpot_s: float, dice: random.Random) -> None:
        super().__init__()
        self._tpot_s, self._dice = tpot_s, dice

    def views(self) -> list[WorkerView]:
        return [self._swayed(view) for view in super().views()]

    def _swayed(self, view: WorkerView) -> WorkerView:
        token_s = self._dice.choice((1e-6, 1e-5, 1e-4))
        return msgspec.structs.replace(
            view,
            load_sequences=max(1, view.load_sequences),
            rows_s=self._tpot_s * self._dice.choice((0.1, 0.7, 2.0)),
            least_rows_s=self._tpot_s * 0.1,
            coming_tokens_s=0.0,
            token_s=token_s,
            more_token_s=token_s,
            piece_token_s=token_s,
        )
