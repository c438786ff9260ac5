"""The two ends of a worker's service when nothing is to happen there: a gateway that keeps its messages, an engine
that computes nothing.
"""

from __future__ import annotations

from baton_engine.scheduling.engine_config import EngineConfig
from baton_engine.scheduling.scheduler import Scheduler
from baton_testing.wire.sessions import sessions
from baton_wire.messages.values import Message
from baton_worker.reporting.views import EngineSnapshot
from baton_worker.serving.engine_thread import Command
from baton_worker.serving.gateway_links import GatewayLink

CONFIG = EngineConfig(num_blocks=4, block_tokens=16, max_slots=1, max_context_tokens=32)


class RecordingLink(GatewayLink):
    """Keeps the messages that it should send."""

    def __init__(self) -> None:
        super().__init__(bytes(16), sessions()[0])
        self.received: list[Message] = []

    def send(self, message: Message) -> None:
        self.received.append(message)


class QuietEngine:
    snapshot = EngineSnapshot(Scheduler(CONFIG).stats(), 1, 0, 0, 0, 0)

    def post(self, command: Command) -> None:
        """Nothing is computed here."""
