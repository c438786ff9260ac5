"""A request at work in this process, and the rules that it runs by: plain values that `relay` works on."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field

import msgspec

from baton_gateway.answers.parse_plan import ParsePlan
from baton_gateway.errors import SLOW_CLIENT, Problem
from baton_gateway.ledger.request_ledger import LedgerEntry
from baton_gateway.openai_api.answer_bounds import bytes_ahead, values_bytes
from baton_gateway.openai_api.answer_writers import AnswerWriter
from baton_gateway.openai_api.encoding_types import EncodeRequest
from baton_gateway.openai_api.openai_types import ChatRequest, CompletionRequest
from baton_gateway.openai_api.response_encoding import Usage
from baton_gateway.records.trail import Moment, Trail
from baton_gateway.reporting.metrics import RequestTimes
from baton_gateway.requests.device_times import DeviceTimes
from baton_gateway.requests.encode_plan import EncodePlan
from baton_gateway.requests.model_load import ModelLoad
from baton_gateway.requests.preparing import PromptRules, begin_choice_texts
from baton_gateway.requests.request import RequestLife
from baton_gateway.requests.request_events import Deliver, LifeRules, Prompt
from baton_gateway.requests.run import Run
from baton_gateway.requests.scored_prompts import ScoredPrompts
from baton_gateway.requests.tenant import Tenant
from baton_gateway.requests.wait_prediction import WaitRules
from baton_gateway.text.choice_text import ChoiceText, Increment
from baton_gateway.text.revision_text import TextModel
from baton_gateway.tracing.trace_context import TraceContext
from baton_gateway.workers.route import RoutePolicy
from baton_wire.messages.values import Finish, PairFingerprint, Reason
from baton_wire.rules.prefix_digests import PromptPlaces

ALTERNATIVES_A_SEQUENCE = 4
ID_BYTES = 8
"""A token id in a tuple: small ints are shared, so it is a pointer."""
MOST_LOGGED_RUNS = 8
"""Runs of a failed request that are logged: its line in the log stays a line."""

_log = logging.getLogger("baton.gateway.requests")


@dataclass(frozen=True, slots=True)
class RelayRules:
    life: LifeRules = field(default_factory=LifeRules)
    route: RoutePolicy = field(default_factory=RoutePolicy)
    max_duration_s: float = 600.0
    ttft_s: float = 0.5
    """The TTFT target, which orders waiting prompts."""
    wait: WaitRules = field(default_factory=WaitRules)
    max_parked: int = 4_096
    """Requests that may wait for a first pair of workers; more are refused and asked to retry."""
    max_parked_bytes: int = 64 << 20
    """Bytes of text and ids in all parked requests. One request may always wait."""
    generation_defaults: bool = True
    clamps_max_tokens: bool = False

    @property
    def prompts(self) -> PromptRules:
        return PromptRules(self.generation_defaults, self.clamps_max_tokens)


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request from its arrival to its end. `run_ids` and later fields are filled once its prompts are built."""

    life: RequestLife
    request: ChatRequest | CompletionRequest
    tenant: Tenant
    writer: AnswerWriter
    ticket: int
    times: RequestTimes
    request_id: str = ""
    """As the client knows it, for logs."""
    answer: str = ""
    """The digits of its answer's id, with which the client may ask for its record; empty: no answer was begun."""
    unenforced: list[str] = field(default_factory=list)
    """Places of keywords in schemas that no grammar enforces."""
    preparing: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    run_ids: tuple[bytes, ...] = ()
    text: TextModel | None = None
    fingerprint: PairFingerprint | None = None
    prompts: tuple[Prompt, ...] = ()
    places: tuple[PromptPlaces, ...] = ()
    """The places of its prompts, by which workers announce what they have cached."""
    cached: dict[int, tuple[float, dict[bytes, int]]] = field(default_factory=dict)
    """Tokens of each prompt that workers have cached, by epoch, and when that was looked up."""
    cacheable_tokens: int = 0
    """Tokens of its prompts that some worker had cached when they were routed."""
    session: int | None = None
    """A number of the session that the client named; None: it named none."""
    texts: list[ChoiceText] = field(default_factory=list)
    echoes: tuple[str, ...] = ()
    load: ModelLoad | None = None
    """The load of its model, which counts it from arrival to end."""
    parked_bytes: int | None = None
    """Bytes of its text and ids, once it waited for a first pair of workers."""
    scores: ScoredPrompts | None = None
    """Log probabilities of the prompts; None: the client wants none."""
    trail: Trail | None = None
    """Where its time goes; None: no records are kept."""
    trace: TraceContext | None = None
    """The trace that it belongs to; None: traces are not exported."""
    queued_for: str = ""
    """Why it waits for admission."""
    parked_for: str = ""
    """The pools whose workers it waits for; empty: not known."""
    is_parked: bool = False
    """True while it waits for workers that serve its model."""
    last_lost: Reason | None = None
    """Why its latest attempt was lost."""
    outcome: str = ""
    """How it ended; empty: it has not."""
    problem: Problem | None = None
    """The error that it ended with."""
    is_read_slowly: bool = False
    """True once its connection was closed because the client read too slowly."""
    entry: LedgerEntry | None = None
    """Its entry in the ledger, from its first attempt until its client has the answer; None: it has none."""
    usage: Usage | None = None
    """Its usage, once it has ended."""
    device_times: DeviceTimes = field(default_factory=DeviceTimes)
    """The time that workers' devices spent on it, if it has an entry in the ledger."""
    slow_gap_s: float = math.inf
    """Longer gaps between its tokens are noted."""
    parse_plan: ParsePlan | None = None
    """How its answers are parsed; None: they are plain text."""
    context: Context = field(default_factory=copy_context)
    """The context of its connection, in which all that is done for the request is scheduled."""

    encoding: EncodePlan | None = None
    """How its prompts are encoded, once they are built; None: they are answered."""

    @property
    def end_code(self) -> str:
        """Why it has no whole answer: its error's code, or `SLOW_CLIENT`; empty: it has one, or its client left."""
        if self.problem is not None:
            return self.problem.code or self.problem.type
        return SLOW_CLIENT if self.is_read_slowly else ""

    @property
    def is_encoded(self) -> bool:
        """True if its prompts are encoded, not answered."""
        return isinstance(self.request, EncodeRequest)

    @property
    def prompt_field(self) -> str:
        if isinstance(self.request, EncodeRequest):
            return self.request.fields[0].partition("[")[0]
        return "messages" if isinstance(self.request, ChatRequest) else "prompt"

    def note(self, moment: Moment, text: str = "", run: bytes = b"") -> None:
        """Note on its trail that something happened now."""
        if self.trail is not None:
            self.trail.mark(asyncio.get_running_loop().time(), moment, run, text)

    def note_parked(self, waits_for: str) -> None:
        """Note that the request waits for workers of these pools."""
        self.is_parked, self.parked_for = True, waits_for
        self.note(Moment.PARKED)

    def note_unread(self, from_s: float) -> None:
        """Note that the client is cut off because it has not read since then."""
        self.is_read_slowly = True
        if self.trail is not None:
            self.trail.unread_from_s = from_s

    def note_unparked(self) -> None:
        """Note that the request leaves where it was parked, if it was."""
        if self.is_parked:
            self.is_parked = False
            self.note(Moment.UNPARKED, self.parked_for)

    def keep_timer(self, loop: asyncio.AbstractEventLoop, tick: Callable[[LiveRequest], None]) -> None:
        """Call `tick` when the life's next Tick is due."""
        wake_at = self.life.wake_at
        if self.timer is not None:
            if self.timer.when() == wake_at and not self.timer.cancelled():
                return
            self.timer.cancel()
        self.timer = loop.call_at(wake_at, tick, self, context=self.context)

    def cancel(self) -> None:
        """Cancel its timer and its preparation."""
        if self.timer is not None:
            self.timer.cancel()
        if self.preparing is not None:
            self.preparing.cancel()

    def begin_texts(self, echoed: tuple[str, ...]) -> None:
        """Start the texts of all choices, after their prompts where those are echoed."""
        assert self.text is not None
        options = self.request.options
        self.echoes = echoed
        if options.prompt_alternatives is not None:
            self.scores = ScoredPrompts(self.prompts, options, self.text, bool(self.echoes))
        texts = echoed or ("",) * len(self.prompts)
        self.texts = begin_choice_texts(self.request, self.text, self.parse_plan, texts)

    def reasoning_tokens(self) -> int | None:
        """Tokens of thoughts so far; None: they cannot be distinguished."""
        if self.parse_plan is None or self.parse_plan.reasoning_marks is None:
            return None
        return sum(text.reasoning_tokens for text in self.texts)

    def prompt_of(self, choice: int) -> int:
        return choice // self.request.options.n

    def increment(self, delivered: Deliver) -> Increment:
        """The client's text for these tokens. With the first ones, the writer also gets what it shows of the prompt."""
        options, choice = self.request.options, delivered.choice
        if options.max_tokens == 0:
            increment = Increment("", finish=Finish.LENGTH)
        else:
            text = self.texts[choice]
            before = text.counted
            increment = text.push(delivered.ids, delivered.logprobs, delivered.finish)
            if options.returns_token_ids:
                increment = msgspec.structs.replace(increment, ids=delivered.ids[: max(0, increment.counted - before)])
        if delivered.is_first and (self.scores is not None or self.echoes):
            self._begin_choice(choice, self.prompt_of(choice))
        return increment

    def _begin_choice(self, choice: int, prompt: int) -> None:
        """Give the writer the prompt's log probabilities and its echo, as far as the client wants them."""
        if self.scores is not None and (scores := self.scores.of(prompt)) is not None:
            self.writer.prompt(choice, scores)
        if self.echoes:
            self.writer.echo(choice, self.echoes[prompt], None if self.scores is None else self.scores.echo(prompt))


def text_bytes(request: ChatRequest | CompletionRequest) -> int:
    """Approximate memory of its prompts: a byte per character, ID_BYTES per token id."""
    if isinstance(request, ChatRequest):
        tools = [tool.for_template() for tool in request.tool_use.tools]
        return len(msgspec.json.encode((request.messages, tools, request.prompting.variables)))
    return sum(len(prompt) * (1 if isinstance(prompt, str) else ID_BYTES) for prompt in request.prompts)


def answer_bytes(request: ChatRequest | CompletionRequest, prompts: Sequence[Prompt]) -> int:
    """Bytes that its answer takes from the memory budget before its first token."""
    options, size = request.options, 0
    if options.is_held:
        size = bytes_ahead(len(prompts) * options.n, prompts[0].sampling.max_tokens, options.logprobs)
    if options.prompt_alternatives is not None:
        times = 1 + options.n if isinstance(request, CompletionRequest) and request.echo else 1
        size += times * values_bytes(sum(prompt.num_tokens for prompt in prompts), options.prompt_alternatives)
    return size


def num_sequences(request: ChatRequest | CompletionRequest) -> int:
    """The request's sequences: prompts × n."""
    return request.options.n * (1 if isinstance(request, ChatRequest) else len(request.prompts))


def answer_effort(request: ChatRequest | CompletionRequest) -> int:
    """The plain sequences that one of the request's costs this process: four alternatives of a token take about as long
    to read and to write as the token itself."""
    return 1 + (request.options.logprobs or 0) // ALTERNATIVES_A_SEQUENCE


def log_failure(life: RequestLife, problem: Problem | None, now: float, request_id: str = "") -> None:
    """Log one line that helps to find out why a request failed: its workers and their states, none of its text."""
    runs = "; ".join(_describe(run, now) for run in life.last_runs[:MOST_LOGGED_RUNS]) or "no run"
    if (more := len(life.last_runs) - MOST_LOGGED_RUNS) > 0:
        runs += f"; and {more} more"
    code, age_s = problem.code if problem is not None else None, now - life.arrived_s
    delivered = life.completion_tokens()
    _log.warning(
        "failed: %s after %.1f s, %d attempts, %d tokens delivered: %s%s",
        *(code, age_s, life.attempts, delivered, runs, f"; request {request_id}" if request_id else ""),
    )


def _describe(run: Run, now: float) -> str:
    prefill, decode, retained = (
        epoch.hex()[:8] if epoch else "-" for epoch in (run.prefill, run.decode, run.retained_by)
    )
    moved = f"moved {now - run.moved_s:.1f} s ago" if run.attempt else "never sent to workers"
    return (
        f"{run.state.name.lower()}, attempt {run.attempt}, prefill {prefill}, decode {decode}, retained by {retained}, "
        f"landed {run.landed}, {run.failures} failures, {run.losses} losses, {moved}"
    )
