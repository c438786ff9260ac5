"""Drives the machine of one request with a clock, in words short enough for whole sequences."""

from __future__ import annotations

from dataclasses import dataclass, field

from baton_gateway.requests.request import RequestLife
from baton_gateway.requests.request_events import (
    Action,
    Admitted,
    Arrived,
    Deliver,
    DeliverEncoded,
    DeliverPrompt,
    End,
    Event,
    LegEnded,
    LifeRules,
    PickRoute,
    Prepare,
    Prepared,
    Prompt,
    PromptArrived,
    Routed,
    Send,
)
from baton_gateway.requests.retry_budget import RetryBudget
from baton_gateway.workers.route import Route
from baton_wire.messages.gateway_link import Cancel, LegFailed, Prefill, PromptLogprobs, Reserve
from baton_wire.messages.values import Address, Finish, PromptLogprob, Reason, SamplingParams, TokenEntry, pack_ids

P1, P2, D1, D2 = (name.encode().ljust(16, b".") for name in ("P1", "P2", "D1", "D2"))
NAMES = {P1: "P1", P2: "P2", D1: "D1", D2: "D2"}
REQUEST = bytes(range(16))
PROMPT = (11, 12, 13)
DEADLINE_S = 600.0


@dataclass
class Drive:
    """A life with a clock; `text` is what each choice was delivered."""

    n: int = 1
    max_tokens: int = 8
    prompts: int = 1
    rules: LifeRules = field(default_factory=LifeRules)
    budget: RetryBudget = field(default_factory=RetryBudget)
    now: float = 0.0
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        self.life = RequestLife(REQUEST, self.n, DEADLINE_S, self.rules, self.budget, self.now)
        self.delivered: dict[int, list[int]] = {}
        self.finished: dict[int, Finish] = {}
        self.sent: list[Send] = []
        self.picks: list[PickRoute] = []
        self.ends: list[End] = []

    def feed(self, event: Event) -> list[str]:
        """Feed the event; returns the actions in short words."""
        return [self._note(action) for action in self.life.handle(event, self.now)]

    def start(self, prefill: bytes | None = P1, decode: bytes = D1) -> None:
        """Admitted, prepared and routed."""
        assert self.feed(Admitted()) == ["prepare"]
        sampling = SamplingParams(max_tokens=self.max_tokens, seed=7, prompt_logprobs=self.prompt_logprobs)
        self.feed(Prepared(tuple(Prompt(pack_ids(PROMPT), sampling, "") for _ in range(self.prompts))))
        for _ in range(self.prompts):
            self.route(prefill, decode)

    def route(self, prefill: bytes | None = P1, decode: bytes = D1) -> list[str]:
        """Answer the oldest open PickRoute."""
        address = None if prefill is None else Address("10.0.0.1", 7)
        return self.feed(Routed(self.picks.pop(0).run, Route(prefill, decode, address)))

    def tokens(
        self, worker: bytes, first: int, *ids: int, choice: int = 0, attempt: int = 1, finish: Finish | None = None,
        run: bytes = REQUEST, cached: int | None = None,
    ) -> list[str]:  # fmt: skip
        return self.feed(Arrived(worker, TokenEntry(run, attempt, choice, first, ids, None, finish, cached)))

    def scores(self, worker: bytes, first: int, number: int, attempt: int = 1, run: bytes = REQUEST) -> list[str]:
        """Log probabilities of `number` tokens of a prompt, from place `first` on."""
        scores = (PromptLogprob(-1.0, 1, ()),) * number
        return self.feed(PromptArrived(worker, PromptLogprobs(run, attempt, first, scores)))

    def leg(self, worker: bytes, reason: Reason, attempt: int = 1, run: bytes = REQUEST) -> list[str]:
        return self.feed(LegEnded(worker, LegFailed(run, attempt, reason)))

    def last(self, kind: type[Prefill | Reserve]) -> Prefill | Reserve:
        message = next(send.message for send in reversed(self.sent) if isinstance(send.message, kind))
        assert not isinstance(message, Cancel)
        return message

    def _note(self, action: Action) -> str:
        match action:
            case Prepare():
                return "prepare"
            case PickRoute():
                self.picks.append(action)
                return "pick"
            case Send():
                self.sent.append(action)
                message = action.message
                suffix = f"#{message.choice}" if isinstance(message, Cancel) and message.choice is not None else ""
                return f"{type(message).__name__.lower()} {NAMES[action.worker]}/{message.attempt}{suffix}"
            case Deliver():
                assert action.choice not in self.finished, "a token after the finish"
                self.delivered.setdefault(action.choice, []).extend(action.ids)
                if action.finish is not None:
                    self.finished[action.choice] = action.finish
                return f"deliver {action.choice}:{','.join(map(str, action.ids))}"
            case DeliverPrompt(prompt, first_index, logprobs):
                return f"prompt {prompt}:{first_index}+{len(logprobs)}"
            case DeliverEncoded(prompt):
                return f"encoded {prompt}"
            case End():
                self.ends.append(action)
                assert len(self.ends) == 1, "ended twice"
                return f"end {action.outcome}" + (f" {action.problem.code}" if action.problem else "")


def started(**options: object) -> Drive:
    drive = Drive(**options)  # type: ignore[arg-type]
    drive.start()
    return drive
