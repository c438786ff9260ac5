"""A gateway's relay on virtual time, with one prefill and one decode worker that only keep time.

Admission, prediction, held runs, routing and the life of a request are the production parts. Workers take turns as the
engine does (`baton_wire.rules.fair_share`). A step has prompts up to a budget; one beyond it is cut while others wait.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from prometheus_client import CollectorRegistry

from baton_gateway.errors import Problem, RefusedError
from baton_gateway.openai_api.json_pieces import EncodedJson
from baton_gateway.openai_api.logprob_json import CompletionLogprobs
from baton_gateway.openai_api.openai_types import CompletionRequest, Options
from baton_gateway.openai_api.response_encoding import AnswerHead, Usage
from baton_gateway.reporting.metrics import GatewayMetrics
from baton_gateway.requests.admission import Admission, AdmissionLimits
from baton_gateway.requests.live_request import LiveRequest, RelayRules
from baton_gateway.requests.relay import Relay
from baton_gateway.requests.tenant import DEFAULT_TENANT, Tenant
from baton_gateway.text.choice_text import Increment
from baton_gateway.workers.linked_workers import LinkedWorker, WorkerTable
from baton_testing.engine.runners import VOCABULARY
from baton_testing.simulation.gateway import TEXT
from baton_testing.virtual_time.event_heap import EventHeap
from baton_testing.virtual_time.loop import VirtualLoop
from baton_wire.liveness import REPORT_S
from baton_wire.messages.gateway_link import Cancel, Hello, Prefill, Reserve, Tokens, WorkerState
from baton_wire.messages.measures import StepTiming
from baton_wire.messages.values import WIRE_VERSION, Address, Finish, PairFingerprint, Role, TokenEntry, unpack_ids
from baton_wire.rules.fair_share import StartTags

MODEL = "m"
PRINT = PairFingerprint(WIRE_VERSION, "a" * 64, "float32", "float32", 2, 2, 8, "b" * 64, "c" * 64)
MESSAGE_S = 0.001
HAND_OVER_S = 0.005
STEP_TOKENS = 8_192
PIECE_TOKENS = 1_024
"""Tokens per piece of a prompt that does not fit into a step, while others wait."""
TOKEN = 7
Key = tuple[bytes, int]


@dataclass(slots=True, eq=False)
class Client:
    """One request, as the relay's answer writer."""

    tenant: Tenant
    asked_s: float
    size: int
    on_end: Callable[[Client], None] = lambda client: None
    live: LiveRequest | None = None
    first_s: float | None = None
    ended_s: float | None = None
    problem: Problem | None = None

    @property
    def ttft_s(self) -> float:
        """Infinite where no token came."""
        return float("inf") if self.first_s is None else self.first_s - self.asked_s


@dataclass(slots=True, eq=False)
class _Writer:
    client: Client
    pool: VirtualPool

    def begin(self, answer: AnswerHead) -> None:
        """Nothing is shown of it."""

    def prompt(self, choice: int, scores: EncodedJson) -> None:
        raise AssertionError("no client asks for log probabilities here")

    def echo(self, choice: int, text: str, logprobs: CompletionLogprobs | None) -> None:
        raise AssertionError("no client asks for the prompt here")

    def increment(self, choice: int, increment: Increment) -> None:
        if self.client.first_s is None:
            self.client.first_s = self.pool.now

    def flush(self) -> None:
        """Nothing is written."""

    def end(self, problem: Problem | None, usage: Usage) -> None:
        self.pool.ended(self.client, problem)


@dataclass(slots=True, eq=False)
class _Prompt:
    message: Prefill
    flow: bytes
    tag: float
    left: int
    has_begun: bool = False

    @property
    def key(self) -> Key:
        return self.message.request, self.message.attempt


@dataclass(slots=True, eq=False)
class _Row:
    key: Key
    choices: int
    max_tokens: int
    tokens: int = 1
    is_landed: bool = False


@dataclass(slots=True, eq=False)
class _Worker:
    hello: Hello
    linked: LinkedWorker | None = None
    steps: int = 0
    timings: list[StepTiming] = field(default_factory=list)
    waiting: deque[Any] = field(default_factory=deque)


class VirtualPool:
    """The relay and what it talks to. `token_s`: of a prompt. `step_s`: of the decode worker, with `slots`."""

    def __init__(
        self,
        *,
        token_s: float = 1e-4,
        step_s: float = 0.02,
        slots: int = 64,
        limits: AdmissionLimits | None = None,
        rules: RelayRules | None = None,
        is_linked: bool = True,
    ) -> None:
        self.heap = EventHeap(seed=1)
        self.loop = VirtualLoop(self.heap)
        self.token_s, self.step_s, self.slots = token_s, step_s, slots
        self.table = WorkerTable()
        self.admission = Admission(limits or AdmissionLimits())
        self._dice = random.Random(2)
        self.metrics = GatewayMetrics(CollectorRegistry())
        with self.loop.entered():
            self.relay = Relay(
                *(self.table, self.admission, cast(Any, None), self.metrics),
                rules or RelayRules(generation_defaults=False),
                random.Random(3),
            )
        self.prefill, self.decode = _Worker(_hello(Role.PREFILL, slots)), _Worker(_hello(Role.DECODE, slots))
        self._prompts: list[_Prompt] = []
        """At the prefill worker; those that have begun first, then in the order of turns."""
        self._turns = StartTags()
        self._computing: list[tuple[_Prompt, int]] = []
        """Prompts of the running step, each with its number of tokens in it."""
        self._rows: dict[Key, _Row] = {}
        self._landed: set[Key] = set()
        self._is_stepping = False
        self.open: dict[Client, None] = {}
        self.most_bytes = 0
        """The most that requests at work held together."""
        self._bytes = 0
        if is_linked:
            self.link()

    @property
    def now(self) -> float:
        return self.heap.now

    def link(self) -> None:
        """Both workers; the prefill worker has computed a step before."""
        for worker in (self.prefill, self.decode):
            worker.linked = LinkedWorker(
                worker.hello, Address("h", 1), TEXT, self._taker(worker), lambda: self.heap.now
            )
            self.table.add(worker.linked)
        self.prefill.timings.append(StepTiming(0, 1_000, 0.0, 0, 0, 1_000 * self.token_s))
        self._report(self.prefill, again_s=REPORT_S)
        self._report(self.decode)
        self.heap.after(0.4 * REPORT_S, lambda: self._report(self.decode, again_s=REPORT_S))
        with self.loop.entered():
            self.relay.worker_changed()

    def run(self, until_s: float) -> None:
        self.heap.run(until_s)

    def close(self) -> None:
        self.loop.bury()

    # Clients ----------------------------------------------------------------------------------------------------------

    def ask(  # noqa: PLR0913 - a request as a client may send it
        self,
        tenant: Tenant = DEFAULT_TENANT,
        prompt_tokens: int = 500,
        output_tokens: int = 20,
        *,
        prompts: int = 1,
        n: int = 1,
        cache_salt: str = "",
        session: int | None = None,
        on_end: Callable[[Client], None] = lambda client: None,
    ) -> Client:
        """A request whose beginning no other shares, and whose answers are as long as asked for. `session`: number of
        the session that its client names."""
        begins = [tuple(self._dice.choices(range(2, VOCABULARY), k=min(16, prompt_tokens))) for _ in range(prompts)]
        ids = [begin + (TOKEN,) * (prompt_tokens - len(begin)) for begin in begins]
        request = CompletionRequest(_options(output_tokens, n, cache_salt), tuple(ids), echo=False)
        client = Client(tenant, self.now, 8 * prompt_tokens * prompts, on_end)
        with self.loop.entered():
            try:
                live = self.relay.start(request, tenant, _Writer(client, self), session=session)
            except RefusedError as refusal:
                client.ended_s, client.problem = self.now, refusal.problem
                self.loop.call_soon(client.on_end, client)
                return client
        client.live = live
        if client.ended_s is None:
            self.open[client] = None
            self._bytes += client.size
            self.most_bytes = max(self.most_bytes, self._bytes)
        return client

    def ask_at(self, at_s: float, *arguments: Any, then: Callable[[Client], None] = lambda client: None) -> None:
        self.heap.after(at_s - self.now, lambda: then(self.ask(*arguments)))

    def ended(self, client: Client, problem: Problem | None) -> None:
        client.ended_s, client.problem = self.now, problem
        if client in self.open:
            del self.open[client]
            self._bytes -= client.size
        self.loop.call_soon(client.on_end, client)

    # Workers ----------------------------------------------------------------------------------------------------------

    def _taker(self, worker: _Worker) -> Callable[[Any], bool]:
        def send(message: Any) -> bool:
            self.heap.after(MESSAGE_S, lambda: self._take(message, worker))
            return True

        return send

    def _take(self, message: Any, worker: _Worker) -> None:
        match message:
            case Prefill():
                flow, tokens = message.flow or message.request, len(unpack_ids(message.tokens))
                self._prompts.append(_Prompt(message, flow, self._turns.opened(flow, tokens), tokens))
                self._compute()
            case Reserve():
                key = message.request, message.attempt
                row = _Row(key, len(message.choices), message.sampling.max_tokens, is_landed=key in self._landed)
                worker.waiting.append(row)
                self._fill_slots()
            case Cancel():
                self._cancel((message.request, message.attempt))

    def _cancel(self, key: Key) -> None:
        for prompt in [prompt for prompt in self._prompts if prompt.key == key]:
            self._forget(prompt)
        self.decode.waiting = deque(row for row in self.decode.waiting if row.key != key)
        self._rows.pop(key, None)
        self._fill_slots()

    def _forget(self, prompt: _Prompt) -> None:
        self._prompts.remove(prompt)
        self._turns.closed(prompt.flow)

    def _compute(self) -> None:
        if self._computing or not self._prompts:
            return
        self._prompts.sort(key=lambda prompt: (not prompt.has_begun, prompt.tag))
        room = STEP_TOKENS
        for prompt in self._prompts:
            is_cut = prompt.left > STEP_TOKENS and len(self._prompts) > 1
            tokens = min(room, PIECE_TOKENS if is_cut else prompt.left)
            if not tokens or (tokens < prompt.left and prompt.left <= STEP_TOKENS):
                break
            if not prompt.has_begun:
                prompt.has_begun = True
                self._turns.began(prompt.tag, prompt.left)
            self._computing.append((prompt, tokens))
            room -= tokens
        tokens = STEP_TOKENS - room
        self.heap.after(tokens * self.token_s, lambda: self._step_ended(tokens))

    def _step_ended(self, tokens: int) -> None:
        computed, self._computing = self._computing, []
        self.prefill.steps += 1
        self.prefill.timings.append(StepTiming(self.prefill.steps, tokens, 0.0, 0, 0, tokens * self.token_s))
        for prompt, took in computed:
            prompt.left -= took
            if not prompt.left and prompt in self._prompts:
                self._forget(prompt)
                self._computed(prompt.message)
        self._compute()

    def _computed(self, message: Prefill) -> None:
        key, is_over = (message.request, message.attempt), message.sampling.max_tokens <= 1
        finish = Finish.LENGTH if is_over else None
        entries = tuple(TokenEntry(*key, choice, 0, (TOKEN,), None, finish) for choice in message.choices)
        self.heap.after(MESSAGE_S, lambda: self._tell(self.prefill, entries))
        if not is_over:
            self.heap.after(HAND_OVER_S, lambda: self._land(key))
        else:
            self._cancel(key)

    def _land(self, key: Key) -> None:
        self._landed.add(key)
        for row in (*self._rows.values(), *self.decode.waiting):
            if row.key == key:
                row.is_landed = True
        self._step_later()

    def _fill_slots(self) -> None:
        used = sum(row.choices for row in self._rows.values())
        waiting = self.decode.waiting
        while waiting and used + waiting[0].choices <= self.slots:
            row = waiting.popleft()
            used += row.choices
            self._rows[row.key] = row
        self._step_later()

    def _step_later(self) -> None:
        if not self._is_stepping and any(row.is_landed for row in self._rows.values()):
            self._is_stepping = True
            self.heap.after(self.step_s, self._step)

    def _step(self) -> None:
        self._is_stepping = False
        self.decode.steps += 1
        entries = []
        for row in [row for row in self._rows.values() if row.is_landed]:
            finish = Finish.LENGTH if row.tokens + 1 >= row.max_tokens else None
            entries += [TokenEntry(*row.key, c, row.tokens, (TOKEN,), None, finish) for c in range(row.choices)]
            row.tokens += 1
            if finish is not None:
                del self._rows[row.key]
                self._landed.discard(row.key)
        self._fill_slots()
        self.heap.after(MESSAGE_S, lambda: self._tell(self.decode, tuple(entries)))

    def _tell(self, worker: _Worker, entries: tuple[TokenEntry, ...]) -> None:
        if entries:
            with self.loop.entered():
                self.relay.tokens(worker.hello.epoch, Tokens(worker.steps, entries))

    def _report(self, worker: _Worker, again_s: float | None = None) -> None:
        assert worker.linked is not None
        timings, worker.timings = tuple(worker.timings[-8:]), []
        if worker is self.prefill:
            computing = sum(tokens for _, tokens in self._computing)
            waiting = sum(prompt.left for prompt in self._prompts) - computing
            state = WorkerState(
                *(False, 0, len(self._prompts), max(0, waiting), 1 << 20, 0, worker.steps, 0.0),
                timings=timings,
                computing_tokens=computing,
            )
        else:
            running = sum(row.choices for row in self._rows.values())
            step_s = self.step_s if worker.steps else 0.0
            state = WorkerState(False, running, len(worker.waiting), 0, 1 << 20, 0, worker.steps, step_s)
        with self.loop.entered():
            worker.linked.record_report(state)
            self.relay.worker_reported()
        if again_s is not None:
            self.heap.after(again_s, lambda: self._report(worker, again_s))


def _hello(role: Role, slots: int) -> Hello:
    is_decode = role is Role.DECODE
    return Hello(
        role=role,
        epoch=(b"d" if is_decode else b"p") * 16,
        fingerprint=PRINT,
        template_hash="t",
        pair_port=1 if is_decode else None,
        served_name=MODEL,
        vocab_size=VOCABULARY,
        max_context_tokens=1 << 18,
        max_choices=16,
        max_sequences=slots,
        block_tokens=16,
        blocks_total=1 << 20,
        bundle_hash="c" * 64,
        bundle_bytes=1,
    )


def _options(max_tokens: int, n: int, cache_salt: str) -> Options:
    return Options(
        model=MODEL, n=n, max_tokens=max_tokens, min_tokens=0, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0,
        presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.0, logit_bias=(), seed=None, stop=(),
        stop_token_ids=(), ignore_eos=True, skip_special_tokens=True, include_stop_str_in_output=False,
        truncate_prompt_tokens=None, logprobs=None, prompt_logprobs=None, prompt_alternatives=None, stream=True,
        include_usage=False, continuous_usage=False, cache_salt=cache_salt,
    )  # fmt: skip
