"""One request at work in this process, and the rules that it is run by: plain values that `relay` works on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from baton_gateway.answers.parse_plan import ParsePlan
from baton_gateway.errors import Problem
from baton_gateway.openai_api.answer_bounds import bytes_ahead, values_bytes
from baton_gateway.openai_api.answer_writers import AnswerWriter
from baton_gateway.openai_api.openai_types import ChatRequest, CompletionRequest
from baton_gateway.reporting.metrics import RequestTimes
from baton_gateway.requests.model_line import ModelLine
from baton_gateway.requests.request import RequestLife
from baton_gateway.requests.request_events import Deliver, LifeRules, Prompt
from baton_gateway.requests.run import Run
from baton_gateway.requests.scored_prompts import ScoredPrompts
from baton_gateway.requests.tenant import Tenant
from baton_gateway.requests.waiting_line import WaitRules
from baton_gateway.text.choice_text import ChoiceText, Increment
from baton_gateway.text.revision_text import TextModel
from baton_gateway.workers.route import RoutePolicy
from baton_wire.messages.values import Finish, PairFingerprint

ALTERNATIVES_A_SEQUENCE = 4
ID_BYTES = 8
"""Of a token id in a tuple: small ints are shared, so it is a pointer."""
MOST_TOLD = 8
"""Runs of a request that failed: its line in the log stays a line."""

_log = logging.getLogger("baton.gateway.requests")


@dataclass(frozen=True, slots=True)
class RelayRules:
    life: LifeRules = field(default_factory=LifeRules)
    route: RoutePolicy = field(default_factory=RoutePolicy)
    max_duration_s: float = 600.0
    ttft_s: float = 0.5
    """The target by which prompts wait their turn."""
    wait: WaitRules = field(default_factory=WaitRules)
    max_parked: int = 4_096
    """Requests that may wait for a first pair of workers; more are told to come again."""
    max_parked_bytes: int = 64 << 20
    """Of text and ids in them together. One request may always wait."""
    generation_defaults: bool = True
    """Whether a model's own sampling defaults count."""


@dataclass(slots=True, eq=False)
class LiveRequest:
    """One request at work. `prepared` onwards is filled when its prompts stand."""

    life: RequestLife
    request: ChatRequest | CompletionRequest
    tenant: Tenant
    sink: AnswerWriter
    ticket: int
    times: RequestTimes
    request_id: str = ""
    """As the client knows it, for logs."""
    preparing: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    run_ids: tuple[bytes, ...] = ()
    text: TextModel | None = None
    fingerprint: PairFingerprint | None = None
    prompts: tuple[Prompt, ...] = ()
    prefixes: tuple[tuple[bytes, ...], ...] = ()
    texts: list[ChoiceText] = field(default_factory=list)
    echoes: tuple[str, ...] = ()
    line: ModelLine | None = None
    """Of its model, from its arrival to its end."""
    parked_bytes: int | None = None
    """Of text and ids, once it waited for a first pair of workers."""
    scores: ScoredPrompts | None = None
    """When log probabilities of the prompts are wanted."""
    reading: ParsePlan | None = None
    """How its answers are read; None: they are text."""

    @property
    def prompt_field(self) -> str:
        return "messages" if isinstance(self.request, ChatRequest) else "prompt"

    def begin_texts(self, echoed: tuple[str, ...]) -> None:
        """Empty texts of all choices, behind their prompts where those are given back."""
        assert self.text is not None
        text, options = self.text, self.request.options
        is_chat = isinstance(self.request, ChatRequest)
        self.echoes = echoed
        if options.prompt_alternatives is not None:
            self.scores = ScoredPrompts(self.prompts, options, text, bool(self.echoes))
        self.texts = [
            text.choice_text(
                options.stop,
                options.skip_special_tokens,
                not is_chat,
                len(self.echoes[prompt]) if self.echoes else 0,
                self.reading.reader() if self.reading is not None else None,
                options.include_stop_str_in_output,
            )
            for prompt in range(len(self.prompts))
            for _ in range(options.n)
        ]

    def reasoning_tokens(self) -> int | None:
        """Tokens of thoughts so far; None: nobody knows which they are."""
        if self.reading is None or self.reading.thought_marks is None:
            return None
        return sum(text.reasoning_tokens for text in self.texts)

    def prompt_of(self, choice: int) -> int:
        return choice // self.request.options.n

    def increment(self, delivered: Deliver) -> Increment:
        """What the client reads of these tokens; with the first ones, what it wants to know of the prompt."""
        options, choice = self.request.options, delivered.choice
        if options.max_tokens == 0:
            increment = Increment("", finish=Finish.LENGTH)
        else:
            increment = self.texts[choice].push(delivered.ids, delivered.logprobs, delivered.finish)
        if delivered.is_first and (self.scores is not None or self.echoes):
            self._begin_choice(choice, self.prompt_of(choice))
        return increment

    def _begin_choice(self, choice: int, prompt: int) -> None:
        """Give its sink what the client wants to know of the prompt."""
        if self.scores is not None and (scores := self.scores.of(prompt)) is not None:
            self.sink.prompt(choice, scores)
        if self.echoes:
            self.sink.echo(choice, self.echoes[prompt], None if self.scores is None else self.scores.echo(prompt))


def text_bytes(request: ChatRequest | CompletionRequest) -> int:
    """Memory of its prompts, about: a byte a character, and as many a token as an id takes."""
    if isinstance(request, ChatRequest):
        tools = [tool.for_template() for tool in request.tool_use.tools]
        return len(msgspec.json.encode((request.messages, tools, request.prompting.variables)))
    return sum(len(prompt) * (1 if isinstance(prompt, str) else ID_BYTES) for prompt in request.prompts)


def answer_bytes(request: ChatRequest | CompletionRequest, prompts: Sequence[Prompt]) -> int:
    """What its answer takes of the memory budget before its first token."""
    options, size = request.options, 0
    if options.is_held:
        size = bytes_ahead(len(prompts) * options.n, prompts[0].sampling.max_tokens, options.logprobs)
    if options.prompt_alternatives is not None:
        times = 1 + options.n if isinstance(request, CompletionRequest) and request.echo else 1
        size += times * values_bytes(sum(prompt.num_tokens for prompt in prompts), options.prompt_alternatives)
    return size


def num_sequences(request: ChatRequest | CompletionRequest) -> int:
    """Prompts × n."""
    return request.options.n * (1 if isinstance(request, ChatRequest) else len(request.prompts))


def answer_effort(request: ChatRequest | CompletionRequest) -> int:
    """How many plain sequences one of the request's costs this process: four alternatives of each token take about as
    long to read and to write as the token itself."""
    return 1 + (request.options.logprobs or 0) // ALTERNATIVES_A_SEQUENCE


def log_failure(life: RequestLife, problem: Problem | None, now: float, request_id: str = "") -> None:
    """A line for whoever has to find out why a client was told of a failure: which workers, in which state, no text."""
    runs = "; ".join(_account(run, now) for run in life.last_runs[:MOST_TOLD]) or "no run"
    if (more := len(life.last_runs) - MOST_TOLD) > 0:
        runs += f"; and {more} more"
    code, age_s = problem.code if problem is not None else None, now - life.arrived_s
    delivered = life.completion_tokens()
    _log.warning(
        "failed: %s after %.1f s, %d attempts, %d tokens delivered: %s%s",
        *(code, age_s, life.attempts, delivered, runs, f"; request {request_id}" if request_id else ""),
    )


def _account(run: Run, now: float) -> str:
    prefill, decode, retained = (
        epoch.hex()[:8] if epoch else "-" for epoch in (run.prefill, run.decode, run.retained_by)
    )
    moved = f"moved {now - run.moved_s:.1f} s ago" if run.attempt else "never sent to workers"
    return (
        f"{run.state.name.lower()}, attempt {run.attempt}, prefill {prefill}, decode {decode}, retained by {retained}, "
        f"landed {run.landed}, {run.failures} failures, {run.losses} losses, {moved}"
    )
