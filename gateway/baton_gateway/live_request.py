"""One request at work in this process, and the rules that it is run by: plain values that `relay` works on."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from baton_gateway.choice_text import ChoiceText
from baton_gateway.metrics import RequestTimes
from baton_gateway.openai_types import ChatRequest, CompletionRequest
from baton_gateway.request import RequestLife
from baton_gateway.request_events import LifeRules, Prompt
from baton_gateway.route import RoutePolicy
from baton_gateway.sinks import Sink
from baton_gateway.tenants import Tenant
from baton_gateway.text import TextModel
from baton_kv_transfer.wire.values import PairFingerprint


@dataclass(frozen=True, slots=True)
class RelayRules:
    life: LifeRules = field(default_factory=LifeRules)
    route: RoutePolicy = field(default_factory=RoutePolicy)
    max_duration_s: float = 600.0
    max_parked: int = 4_096
    """Requests that may wait for a first pair of workers; more are told to come again."""


@dataclass(slots=True, eq=False)
class LiveRequest:
    """One request at work. `prepared` onwards is filled when its prompts stand."""

    life: RequestLife
    request: ChatRequest | CompletionRequest
    tenant: Tenant
    sink: Sink
    ticket: int
    times: RequestTimes
    preparing: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    run_ids: tuple[bytes, ...] = ()
    text: TextModel | None = None
    fingerprint: PairFingerprint | None = None
    prompts: tuple[Prompt, ...] = ()
    prefixes: tuple[tuple[bytes, ...], ...] = ()
    texts: list[ChoiceText] = field(default_factory=list)
    echoes: tuple[str, ...] = ()
