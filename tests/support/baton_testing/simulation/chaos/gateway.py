"""A simulated gateway that prepares prompts: the production template renderer, tokenizer, grammar compiler and probes
around simulated helper processes. It sees where its clients hang up, and who overtakes whom.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

import msgspec

from baton_gateway.errors import ProcessNotStartedError, RefusedError, TurnTimeoutError
from baton_gateway.helper_processes.process_lane import HealthProblem
from baton_gateway.http_api.lookups import Lookups
from baton_gateway.openai_api.openai_types import ChatRequest, CompletionRequest
from baton_gateway.reporting.outcome import Outcome
from baton_gateway.requests.admission import AdmissionLimits
from baton_gateway.requests.live_request import LiveRequest
from baton_gateway.requests.request import Stage
from baton_gateway.requests.request_events import End
from baton_gateway.requests.run import RunState
from baton_gateway.requests.tenant import Tenant
from baton_gateway.structured_outputs.format_compiler import FormatCompiler
from baton_gateway.text.choice_text import Increment
from baton_gateway.text.template_renderer import TemplateRenderer
from baton_gateway.text.tokenizer_process import TokenizerProcess
from baton_testing.simulation.chaos.plan import Await, ChaosFault, ChaosPlan, Form, Neighbour
from baton_testing.simulation.chaos.simulated_helpers import (
    BUNDLE,
    COMPILE_S,
    PADDING,
    RENDER_S,
    HelperRoom,
    text_of,
)
from baton_testing.simulation.clients import SimClient, expected_text
from baton_testing.simulation.gateway import METRICS, TEXT, GatewayWorld, SimGateway, SimRelay
from baton_testing.simulation.network import End as LinkEnd
from baton_testing.simulation.process import require
from baton_wire.messages import codec
from baton_wire.messages.gateway_link import ToGateway, Tokens

ROOM = AdmissionLimits(max_running=4, max_queued=64, max_wait_s=8.0)
LOOK_S = 1.0
PREPARED_S = 9.0
"""However many others bring prompts and whatever fails, the innocent tenant's is prepared or refused by then."""
OVERTAKEN = 6
"""Requests of others that may begin while one of the innocent tenant waits, which has nothing at work."""
_preparing: ContextVar[LiveRequest | None] = ContextVar("preparing", default=None)


@dataclass(eq=False)
class ChaosClient(SimClient):
    """One that may hang up anywhere. What it must get is computed when something comes: many get nothing."""

    plan: ChaosPlan
    tenant: Tenant = field(kw_only=True)
    arrived_s: float = 0.0
    answered_s: float | None = None
    """When the first text came."""
    hung_up_in: Await | None = None
    is_lied_to: bool = False
    """A worker that has its request lied about it: its text is that worker's."""
    prepares_since: float | None = None
    overtaken: int = 0
    parked: int = 0

    @property
    def is_innocent(self) -> bool:
        return self.plan.neighbour is Neighbour.INNOCENT

    def increment(self, choice: int, increment: Increment) -> None:
        if self.answered_s is None:
            self.answered_s = self.now()
        if self.is_lied_to:
            self.got[choice] += increment.text
            if increment.finish is not None:
                self.finishes[choice] = increment.finish
            most = self.plan.sampling.max_tokens
            require(len(self.got[choice]) <= most, "I10", f"{self.name}: {len(self.got[choice])} tokens of {most}")
            return
        if not self.expected[choice]:
            self.expected[choice] = expected_text(self.plan, choice)
        super().increment(choice, increment)

    now: Callable[[], float] = field(default=lambda: 0.0, kw_only=True)

    def request(self) -> CompletionRequest | ChatRequest:
        request, plan = super().request(), self.plan
        options = msgspec.structs.replace(request.options, stop=())
        match plan.form:
            case Form.IDS:
                return msgspec.structs.replace(request, options=options)
            case Form.TEXT:
                return CompletionRequest(options, (text_of(plan.tokens),), echo=False)
        half = len(plan.tokens) // 2
        texts = [text_of(plan.tokens[:half]), text_of(plan.tokens[half:])]
        if plan.form is Form.LONG_CHAT:
            texts.append(PADDING)
        return ChatRequest(options, tuple({"role": "user", "content": text} for text in texts))


class ChaosRelay(SimRelay):
    """Sees which request prepares, and whom admission lets begin."""

    gateway: ChaosGateway

    async def _prepare(self, live: LiveRequest) -> None:
        _preparing.set(live)
        await super()._prepare(live)

    def _admit_one(self, live: LiveRequest) -> None:
        if live.ticket in self._by_ticket:
            self.gateway.begins(live)
        super()._admit_one(live)

    def _park(self, live: LiveRequest, problem: Any) -> Any:
        cast(ChaosClient, live.writer).parked += 1
        return super()._park(live, problem)


class ChaosGatewayWorld(GatewayWorld, Protocol):
    hang_ups: Counter[Await]
    overtaken: int
    liars: set[bytes]
    """Epochs of workers that lied."""

    @property
    def has_faulty_machines(self) -> bool: ...

    def count(self, fault: Any) -> None: ...


class ChaosGateway(SimGateway):
    expected_errors = (*SimGateway.expected_errors, RefusedError, ProcessNotStartedError, TurnTimeoutError)
    relay_class = ChaosRelay
    limits = ROOM
    world: ChaosGatewayWorld

    def __init__(self, world: ChaosGatewayWorld, name: str, epoch: bytes, address: str) -> None:
        super().__init__(world, name, epoch, address)
        parts = world.parts
        dice = random.Random(world.heap.random.getrandbits(64))
        self.helpers = HelperRoom(self, self.loop, dice, world.count, self._pipe_full)
        with self.loop.entered():
            tokenizer = TokenizerProcess(b"", BUNDLE.hash)
        self.text = replace(TEXT, bundle=BUNDLE, process=tokenizer)
        with self.loop.entered():
            templates: TemplateRenderer = parts.templates(RENDER_S)
            self.relay.prompts.compiler = FormatCompiler(METRICS.shaped, COMPILE_S)
        self.relay.prompts.templates = templates
        self.relay._loads = parts.loads(self.table, self.admission)
        self.awaits: dict[LiveRequest, Await] = {}
        """The wait that each request in preparation is in."""
        templates.render = self._noted(Await.RENDERING, templates.render)  # type: ignore[method-assign]
        tokenizer.encode = self._noted(Await.TOKENISING, tokenizer.encode)  # type: ignore[method-assign]
        self.relay.prompts.compiler.compile = self._noted(Await.COMPILING, self.relay.prompts.compiler.compile)  # type: ignore[method-assign]
        self._sources = templates, self.relay.prompts.compiler, self.relay.prompts.encoder, tokenizer
        self.lookups: Lookups = parts.lookups(
            self.table, cast(Any, None), self.rules.route, METRICS, self._health_problems
        )
        self.later(LOOK_S, self._look)

    def _noted(self, what: Await, call: Callable[..., Awaitable[Any]]) -> Any:
        async def noted(*given: Any, **named: Any) -> Any:
            live = _preparing.get()
            if live is not None:
                self.awaits[live] = what
            try:
                return await call(*given, **named)
            finally:
                if live is not None and self.awaits.get(live) is what:
                    del self.awaits[live]

        return noted

    def _health_problems(self) -> list[HealthProblem]:
        return [problem for source in self._sources for problem in source.health_problems(self.now)]

    def _look(self) -> None:
        """As the production server does, every second: at processes that fail."""
        templates, shapes, _, tokenizer = self._sources
        for source in (templates, shapes, tokenizer):
            self.loop.create_task(source.recheck())
        self.later(LOOK_S, self._look)

    # Clients ----------------------------------------------------------------------------------------------------------

    def start(self, client: SimClient) -> None:
        assert isinstance(client, ChaosClient)
        client.arrived_s = self.now
        self.relay.reconfigure(replace(self.rules, max_duration_s=client.plan.limit_s))
        try:
            self.relay.start(client.request(), client.tenant, client)
        except RefusedError as refusal:
            client.ended(End(Outcome.REFUSED, refusal.problem), self.now)
            self.world.ended(client, set())

    def begins(self, live: LiveRequest) -> None:
        """Admission lets it."""
        mine, lives = cast(ChaosClient, live.writer), list(self.relay._by_ticket.values())
        waiting = [
            cast(ChaosClient, other.writer) for other in lives if other.life.stage is Stage.QUEUED and other is not live
        ]
        at_work = {other.tenant.name for other in lives if other.life.stage is not Stage.QUEUED}
        for client in waiting:
            if client.is_innocent and client.tenant.name not in {mine.tenant.name, *at_work}:
                client.overtaken += 1
                self.world.overtaken = max(self.world.overtaken, client.overtaken)
                is_fair = client.overtaken <= OVERTAKEN
                require(is_fair, "I16", f"{client.name} was overtaken by {client.overtaken} requests")

    def await_of(self, live: LiveRequest) -> Await | None:
        """The named wait that a request is in; None: it is in none."""
        life = live.life
        match life.stage:
            case Stage.QUEUED:
                return Await.TURN
            case Stage.PARKED:
                return Await.PARKED
            case Stage.PREPARING:
                return self.awaits.get(live)
            case Stage.RUNNING:
                return self._await_of_runs(live)
        return None

    def _await_of_runs(self, live: LiveRequest) -> Await | None:
        runs = list(live.life._runs.values())
        if any(run.state is RunState.UNROUTED for run in runs):
            return Await.PARKED
        if any(run.state is RunState.ROUTING for run in runs):
            return Await.HELD
        running = [run for run in runs if run.state is RunState.RUNNING]
        if not running:
            return None
        if any(run.landed for run in running):
            return Await.STREAMING
        return Await.HAND_OVER if live.life.completion_tokens() else Await.PREFILL

    def ended(self, live: LiveRequest, action: End) -> None:
        if cast(ChaosClient, live.writer).is_lied_to:
            self.legs.forget(live.run_ids)
        super().ended(live, action)

    # Links ------------------------------------------------------------------------------------------------------------

    def received(self, end: LinkEnd, frame: bytes) -> None:
        epoch = end.other.process.epoch
        if epoch in self.world.liars:
            message = codec.decode(frame, ToGateway)
            if isinstance(message, Tokens):  # its lies about others' legs do not enter the books of legs
                for entry in message.entries:
                    if self.legs.has(epoch, entry):
                        self.legs.arrived(epoch, entry)
                self.relay.tokens(epoch, message)
                return
        super().received(end, frame)

    def lost(self, end: LinkEnd, detail: str) -> None:
        """I17: a request, a client or a lying worker costs no other worker's link."""
        is_explained = self.world.has_faulty_machines or end.other.process.epoch in self.world.liars
        require(is_explained, "I17", f"{self.name} lost its link to {end.other.process.name}: {detail}")
        super().lost(end, detail)

    def status(self, probe: str) -> int:
        """The status of a probe's answer, by the production handler; it waits for nothing."""
        answer = getattr(self.lookups, probe)(None, None)
        try:
            answer.send(None)
        except StopIteration as done:
            return int(done.value.status)
        raise AssertionError(f"the probe {probe} waits")

    # Checks -----------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        super().check()
        for live in list(self.relay._by_ticket.values()):
            client = cast(ChaosClient, live.writer)
            self._check_preparing(client, live)
            if client.plan.hang_up is not None and client.hung_up_in is None:
                self._hang_up(client, live)

    def _check_preparing(self, client: ChaosClient, live: LiveRequest) -> None:
        if live.life.stage is not Stage.PREPARING:
            client.prepares_since = None
            return
        if client.prepares_since is None:
            client.prepares_since = self.awake_s
        took_s = self.awake_s - client.prepares_since
        is_swift = took_s < PREPARED_S or not client.is_innocent
        require(is_swift, "I18", f"{client.name}: {self.await_of(live)} for {took_s:.1f} s")

    def _hang_up(self, client: ChaosClient, live: LiveRequest) -> None:
        what = self.await_of(live)
        if what is Await.RENDERING and client.plan.form is Form.LONG_CHAT:
            return  # in the middle of its answer
        if what is client.plan.hang_up:
            client.hung_up_in = what
            self.later(client.plan.linger_s, lambda: self._gone(client))

    def _pipe_full(self) -> None:
        """The client of a long chat hangs up while what was rendered is on its way."""
        for live, what in list(self.awaits.items()):
            client = cast(ChaosClient, live.writer)
            if what is Await.RENDERING is client.plan.hang_up and client.plan.form is Form.LONG_CHAT:
                self._gone(client)

    def _gone(self, client: ChaosClient) -> None:
        live = next((live for live in self.relay._by_ticket.values() if live.writer is client), None)
        if live is not None:
            self.world.hang_ups[self.await_of(live) or client.plan.hang_up or Await.TURN] += 1
            self.client_gone(client)

    def leftovers(self) -> str | None:
        left = super().leftovers()
        if left is None and self.loop._tasks:
            left = f"{self.name}: tasks {[task.get_coro().__qualname__ for task in self.loop._tasks]}"  # type: ignore[union-attr]
        if left is None and len(self.helpers.running) > 5:
            left = f"{self.name}: {len(self.helpers.running)} helper processes"
        if left is None:
            held = [line.held for line in self.relay._loads._loads.values() if len(line)]
            left = f"{self.name}: lines {held}" if held else None
        return left


__all__ = ["ChaosClient", "ChaosFault", "ChaosGateway"]
