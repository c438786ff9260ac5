"""The plan of a world of three tenants, drawn from a seed: requests, hang-ups and faults."""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass, replace

import msgspec

from baton_gateway.requests.tenant import DEFAULT_TENANT, Tenant
from baton_testing.engine import toy_grammars
from baton_testing.simulation.scenario import (
    CONTEXT_TOKENS,
    FAULTS_UNTIL_S,
    WEIGHTS,
    Fault,
    FaultPlan,
    RequestPlan,
    Scenario,
    Shape,
    draw_shape,
)
from baton_wire.messages.values import SamplingParams

PATIENT_S = 15.0
"""Longer than anything that the innocent tenant may be made to wait."""
HUNG_UP = 0.6
"""Share of the hostile tenant's requests that hang up."""
KEYLESS = 0.3
"""Share of the worlds in which one tenant has no key."""


class ChaosFault(enum.StrEnum):
    """Kinds of faults besides those of `Fault`; the run counts each that took effect."""

    KILL_HELPER = "helper process killed"
    WEDGE_HELPER = "helper process wedged"
    DELAY_HELPER = "helper process answered late"
    REFUSE_HELPER = "helper process did not start"
    MUTE_HELPER = "helper process started and said nothing"
    NO_DESCRIPTORS = "gateway without descriptors"
    LYING_STATE = "worker told an absurd state"
    FOREIGN_TOKENS = "worker told tokens of another's request"
    EXCESS_TOKENS = "worker told more tokens than were asked for"
    UNKNOWN_IDS = "worker told ids beyond the vocabulary"
    ABSURD_CACHE = "worker told more cached tokens than the prompt has"
    BAD_FIELDS = "worker sent fields out of range"


APART = (
    ChaosFault.KILL_HELPER,
    ChaosFault.WEDGE_HELPER,
    ChaosFault.DELAY_HELPER,
    ChaosFault.REFUSE_HELPER,
    ChaosFault.MUTE_HELPER,
    ChaosFault.NO_DESCRIPTORS,
)
LIES = (
    ChaosFault.LYING_STATE,
    ChaosFault.FOREIGN_TOKENS,
    ChaosFault.EXCESS_TOKENS,
    ChaosFault.UNKNOWN_IDS,
    ChaosFault.ABSURD_CACHE,
    ChaosFault.BAD_FIELDS,
)


class Await(enum.StrEnum):
    """The waits of a request, in which its client can hang up."""

    TURN = "its turn"
    RENDERING = "rendering"
    TOKENISING = "tokenising"
    COMPILING = "compiling"
    PARKED = "workers"
    HELD = "room at workers"
    PREFILL = "its first token"
    HAND_OVER = "its hand-over"
    STREAMING = "more tokens"


class Form(enum.Enum):
    """How a prompt is sent."""

    IDS = enum.auto()
    TEXT = enum.auto()
    CHAT = enum.auto()
    LONG_CHAT = enum.auto()
    """Its rendering is larger than what a pipe holds."""


class Neighbour(enum.StrEnum):
    INNOCENT = "innocent"
    QUOTA = "at its quota"
    HOSTILE = "hostile"


class Weather(enum.StrEnum):
    """The faults that a world has; every world also has hostile tenants and hang-ups."""

    CALM = "no fault"
    APART = "helper processes fail"
    LIES = "workers lie"
    STORM = "everything fails"


@dataclass(frozen=True, slots=True)
class ChaosPlan(RequestPlan):
    neighbour: Neighbour = Neighbour.INNOCENT
    form: Form = Form.IDS
    hang_up: Await | None = None
    """Where the client hangs up, if the request comes there."""
    linger_s: float = 0.0
    """How long after it has come there."""


@dataclass(frozen=True, slots=True)
class ChaosScenario(Scenario):
    weather: Weather = Weather.CALM
    tenants: tuple[tuple[Neighbour, Tenant], ...] = ()

    def tenant(self, neighbour: Neighbour) -> Tenant:
        return dict(self.tenants)[neighbour]


def chaos_scenario(seed: int, weather: Weather | None = None) -> ChaosScenario:
    """The world of a seed, in the weather that the seed brings, or in this one."""
    dice = random.Random(f"chaos {seed}")
    drawn = dice.choice((Weather.CALM, Weather.CALM, Weather.APART, Weather.LIES, Weather.STORM, Weather.STORM))
    weather = weather or drawn
    shape = _chaos_shape(dice, weather)
    plans = sorted((*_innocent(dice), *_at_quota(dice), *_hostile(dice)), key=lambda plan: plan.at_s)
    requests = tuple(replace(plan, number=number) for number, plan in enumerate(plans))
    faults = tuple(sorted(_faults(dice, weather), key=lambda fault: fault.at_s))
    return ChaosScenario(seed, shape, requests, faults, weather, _tenants(dice))


def _chaos_shape(dice: random.Random, weather: Weather) -> Shape:
    """Blocks and slots for what the innocent tenant brings; the gateways' own room is what tenants compete for."""
    shape = draw_shape(dice)
    return replace(
        shape,
        gateways=dice.choice((1, 1, 2)),
        prefills=2,
        decodes=2,
        prefill_blocks=max(48, shape.prefill_blocks),
        decode_blocks=3 * CONTEXT_TOKENS // shape.decode_block_tokens,
        landing_bytes=max(2_048, shape.landing_bytes),
        slots=6,
        max_waiting=32,
        step_tokens=dice.choice((8, 24)),
        skewed=weather is Weather.STORM and shape.skewed,
        message_s=min(0.01, shape.message_s),
    )


def _tenants(dice: random.Random) -> tuple[tuple[Neighbour, Tenant], ...]:
    quota = Tenant("quota", "quota", max_running=1, max_queued=dice.choice((None, 24)))
    innocent = Tenant("innocent", "innocent", weight=dice.choice((1.0, 2.0, 8.0)))
    hostile = Tenant("hostile", "hostile", weight=dice.choice((0.5, 1.0)))
    if dice.random() < KEYLESS:
        if dice.random() < 0.5:
            hostile = DEFAULT_TENANT
        else:
            innocent = DEFAULT_TENANT
    return (Neighbour.INNOCENT, innocent), (Neighbour.QUOTA, quota), (Neighbour.HOSTILE, hostile)


def _innocent(dice: random.Random) -> list[ChaosPlan]:
    """A request now and then, short ones, as one person sends them."""
    at_s, plans = 0.3 + dice.random() * 0.3, []
    while at_s < FAULTS_UNTIL_S:
        plan = _plan(
            dice, Neighbour.INNOCENT, at_s, dice.choice((1, 4, 9, 16, 32)), dice.choice((1, 3, 6, 9)), PATIENT_S
        )
        plans.append(_in_some_form(plan, dice, long_chats=0.1))
        at_s += 0.2 + dice.random() * 0.5
    return plans


def _at_quota(dice: random.Random) -> list[ChaosPlan]:
    """A long line of a tenant that may run one sequence."""
    plans = []
    for _ in range(dice.choice((20, 40))):
        at_s = dice.random() ** 3 * 1.5
        plan = _plan(
            dice, Neighbour.QUOTA, at_s, dice.choice((16, 32, 48)), dice.choice((9, 14)), dice.choice((6.0, 9.0))
        )
        plans.append(_maybe_gone(_in_some_form(plan, dice, long_chats=0.1), dice, 0.1))
    return plans


def _hostile(dice: random.Random) -> list[ChaosPlan]:
    """Bursts of everything that is expensive, most requests hung up."""
    plans = []
    for _ in range(dice.choice((2, 3, 4))):
        burst_s = dice.random() * (FAULTS_UNTIL_S - 0.5)
        for _ in range(dice.choice((8, 16))):
            at_s = burst_s + dice.random() * 0.1
            tokens = dice.choice((1, 40, 60, 63, 200))
            plan = _plan(dice, Neighbour.HOSTILE, at_s, tokens, dice.choice((1, 4, 14)), dice.choice((1.0, 9.0)))
            plan = replace(plan, n=dice.choice((1, 1, 2, 4, 64)))
            plans.append(_maybe_gone(_in_some_form(plan, dice, long_chats=0.5), dice, HUNG_UP))
    return plans


def _plan(
    dice: random.Random, neighbour: Neighbour, at_s: float, tokens: int, max_tokens: int, limit_s: float
) -> ChaosPlan:
    ids = tuple(dice.randrange(toy_grammars.SIZE) for _ in range(tokens))
    sampling = SamplingParams(max_tokens=max_tokens, seed=dice.randrange(1 << 30))
    return ChaosPlan(0, at_s, dice.random(), ids, 1, sampling, "", limit_s, None, None, neighbour=neighbour)


def _in_some_form(plan: ChaosPlan, dice: random.Random, long_chats: float) -> ChaosPlan:
    form = dice.choice((Form.IDS, Form.TEXT, Form.CHAT))
    if form is Form.CHAT and dice.random() < long_chats:
        form = Form.LONG_CHAT
    plan = replace(plan, form=form)
    if dice.random() >= 0.2:
        return plan
    pattern = dice.choice(toy_grammars.PATTERNS)
    grammar, ends = toy_grammars.grammar(pattern), (toy_grammars.END,)
    sampling = msgspec.structs.replace(plan.sampling, grammar=grammar, stop_token_ids=ends)
    return replace(plan, sampling=sampling, pattern=pattern)


def _maybe_gone(plan: ChaosPlan, dice: random.Random, share: float) -> ChaosPlan:
    if dice.random() >= share:
        return plan
    return replace(plan, hang_up=dice.choice(tuple(Await)), linger_s=dice.random() ** 3 * 0.05)


def _faults(dice: random.Random, weather: Weather) -> list[FaultPlan]:
    def draw(count: int, kinds: tuple[Fault | ChaosFault, ...]) -> list[FaultPlan]:
        return [
            FaultPlan(dice.random() * FAULTS_UNTIL_S, dice.choice(kinds), dice.random(), dice.random())
            for _ in range(count)
        ]

    machines = dice.choices(list(WEIGHTS), list(WEIGHTS.values()), k=dice.choice((10, 30, 60)))
    match weather:
        case Weather.CALM:
            return []
        case Weather.APART:
            return draw(dice.choice((4, 8, 12)), APART)
        case Weather.LIES:
            return draw(dice.choice((8, 16)), LIES)
        case Weather.STORM:
            storm = [FaultPlan(dice.random() * FAULTS_UNTIL_S, kind, dice.random(), dice.random()) for kind in machines]
            return [*storm, *draw(4, APART), *draw(4, LIES)]
