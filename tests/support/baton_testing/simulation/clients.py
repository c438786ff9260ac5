"""Clients of simulated gateways: what each asked, what it must get, and what it got."""

from __future__ import annotations

from dataclasses import dataclass, field

import regex

from baton_gateway.errors import Problem
from baton_gateway.openai_api.json_pieces import EncodedJson
from baton_gateway.openai_api.logprob_json import CompletionLogprobs
from baton_gateway.openai_api.openai_types import ChatRequest, CompletionRequest, Options
from baton_gateway.openai_api.response_encoding import AnswerHead, Usage
from baton_gateway.reporting.outcome import Outcome
from baton_gateway.requests.request_events import End
from baton_gateway.structured_outputs.output_format import FormatKind, OutputFormat
from baton_gateway.text.choice_text import Increment
from baton_testing.engine.runners import reference_tokens
from baton_testing.engine.toy_grammars import letter
from baton_testing.simulation.process import require
from baton_testing.simulation.scenario import CONTEXT_TOKENS, RequestPlan
from baton_testing.simulation.worker import SERVED
from baton_wire.messages.values import Finish


@dataclass(slots=True, eq=False)
class SimClient:
    """One client connection, as the relay's sink: what it asked, what it got, how it ended."""

    plan: RequestPlan
    stop: tuple[str, ...]
    expected: list[str]
    got: list[str]
    finishes: dict[int, Finish] = field(default_factory=dict)
    ending: End | None = None
    ended_s: float = 0.0
    is_gone: bool = False
    """It hung up, or its gateway was killed."""

    @property
    def name(self) -> str:
        return f"request {self.plan.number}"

    def begin(self, answer: AnswerHead) -> None:
        """The request is running."""

    def prompt(self, choice: int, scores: EncodedJson) -> None:
        raise AssertionError("nobody asks for log probabilities here")

    def echo(self, choice: int, text: str, logprobs: CompletionLogprobs | None) -> None:
        raise AssertionError("nobody asks for the prompt here")

    def increment(self, choice: int, increment: Increment) -> None:
        require(self.ending is None, "I1", f"{self.name}: text after the end")
        require(choice not in self.finishes, "I7", f"{self.name}: text after finish of {choice}")
        self.got[choice] += increment.text
        so_far, must = self.got[choice], self.expected[choice]
        require(must.startswith(so_far), "I4", f"{self.name} choice {choice}: got {so_far}, expected {must}")
        if increment.finish is not None:
            self.finishes[choice] = increment.finish
            require(so_far == must, "I7", f"{self.name}: finished after {len(so_far)} of {len(must)} tokens")

    def flush(self) -> None:
        """Nothing is written anywhere."""

    def end(self, problem: Problem | None, usage: Usage) -> None:
        """`ended` has looked at it."""

    def ended(self, action: End, now: float) -> None:
        require(self.ending is None, "I1", f"{self.name} ended twice: {self.ending}, {action}")
        self.ending, self.ended_s = action, now
        if action.outcome is Outcome.FINISHED:
            missing = set(range(self.plan.n)) - set(self.finishes)
            require(not missing, "I1", f"{self.name} finished without the ends of {missing}")

    def request(self) -> CompletionRequest | ChatRequest:
        plan, sampling = self.plan, self.plan.sampling
        options = Options(
            model=SERVED,
            n=plan.n,
            max_tokens=sampling.max_tokens,
            min_tokens=sampling.min_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            repetition_penalty=sampling.repetition_penalty,
            logit_bias=sampling.logit_bias,
            seed=sampling.seed,
            stop=self.stop,
            stop_token_ids=sampling.stop_token_ids,
            ignore_eos=False,
            skip_special_tokens=True,
            include_stop_str_in_output=False,
            truncate_prompt_tokens=None,
            logprobs=None,
            prompt_logprobs=None,
            prompt_alternatives=None,
            stream=True,
            include_usage=False,
            continuous_usage=False,
            cache_salt="",
            output_format=None
            if plan.pattern is None
            else OutputFormat(FormatKind.REGEX, "structured_outputs", plan.pattern),
        )
        return CompletionRequest(options, (plan.tokens,), echo=False)


def client(plan: RequestPlan) -> SimClient:
    """A stop string is one of the first choice's own letters."""
    texts = [expected_text(plan, choice) for choice in range(plan.n)]
    first = texts[0][: plan.stop_after]
    stop = (first[-1],) if plan.stop_after is not None and first else ()
    return SimClient(plan, stop, [text.split(stop[0])[0] if stop else text for text in texts], [""] * plan.n)


def expected_text(plan: RequestPlan, choice: int) -> str:
    """What the choice must be, computed alone."""
    sampling = plan.sampling
    ids = reference_tokens(plan.tokens, len(plan.tokens), sampling, choice, CONTEXT_TOKENS)
    is_stopped = ids[-1] in sampling.stop_token_ids and len(ids) > sampling.min_tokens
    text = "".join(map(letter, ids[:-1] if is_stopped else ids))
    if plan.pattern is not None:
        fits = regex.fullmatch(plan.pattern, text, partial=not is_stopped)
        require(fits is not None, "I4", f"request {plan.number}: {text} does not follow {plan.pattern}")
    return text
