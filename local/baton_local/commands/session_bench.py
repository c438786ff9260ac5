"""`baton bench --sessions`: how runs of sessions are carried out on a server."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

from baton_local.client import Answer, send
from baton_local.load_test.closed_loop import TurnAnswer, closed_loop
from baton_local.load_test.loaded_server import LoadedServer
from baton_local.load_test.prompts import IdPrompts, WordPrompts
from baton_local.load_test.session_prompts import IdSegments, SegmentWriter, SessionPrompts, WordSegments
from baton_local.load_test.session_report import SessionRun
from baton_local.progress_bar import PROGRAM, ProgressBar
from baton_simulate.sessions.session_load import SessionLoad, SessionTurn
from baton_simulate.sessions.turn_order import LoopLimits

MOST_NUMBER: Final = 1 << 30
SESSION_HEADER: Final = "X-Session-Id"


@dataclass(slots=True)
class SessionMeasurement:
    """The runs of a load of sessions so far, one after the other on one server."""

    server: LoadedServer
    limits: LoopLimits
    sends_ids: bool
    """Each request says in a header to which session it belongs."""
    runs: list[SessionRun] = field(default_factory=list)
    duration_s: float = 0.0

    @property
    def answers(self) -> list[Answer]:
        return [turn.answer for run in self.runs for turn in run.answers]

    async def run(self, load: SessionLoad, number: int) -> None:
        """Carry out a load and add it to the runs; one that is cancelled as far as it went. `number`: of the loads on
        one server, no two of which have a prompt in common."""
        prompts = SessionPrompts(_writer(self.server, number))
        answers: list[TurnAnswer] = []

        async def send_turn(turn: SessionTurn) -> Answer:
            headers = {SESSION_HEADER: f"{number}-{turn.session}"} if self.sends_ids else {}
            request = self.server.request_of_json(prompts.as_json(turn.prompt), turn.output_tokens, headers)
            return await send(self.server.session, self.server.endpoint, request)

        with ProgressBar(PROGRAM, len(load.turns), " turns") as bar:

            def on_answer(turn: TurnAnswer) -> None:
                answers.append(turn)
                bar.at(len(answers))

            began_s = time.monotonic()
            try:
                await closed_loop(load, send_turn, self.limits, on_answer)
            finally:
                self.duration_s += time.monotonic() - began_s
                self.runs.append(SessionRun(load, tuple(sorted(answers, key=lambda turn: turn.answer.sent_s))))


def _writer(server: LoadedServer, number: int) -> SegmentWriter:
    """Segments of the kind that the server's prompts are, with a salt of their own for each load."""
    match server.prompts:
        case IdPrompts(first, last, salt):
            return IdSegments(first, last, salt + number)
        case WordPrompts(_, per_word, salt):
            return WordSegments(per_word, salt + number)
    raise AssertionError("prompts are ids or words")
