"""The parts of a simulated world and its events, drawn from a seed: values that a shrinker can drop."""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass, replace

import msgspec

from baton_testing.engine import toy_grammars
from baton_wire.messages.values import SamplingParams

CONTEXT_TOKENS = 64
FAULTS_UNTIL_S = 5.0
RARE = 0.2
"""Share of the worlds with faults that have one that stays."""
STRUCTURED = 0.25
"""Share of the requests that follow a grammar."""
FLEXIBLE = 0.25
"""Share of the worlds whose workers flip."""
PLACED = 0.3
"""Share of the worlds whose gateways choose where a prompt is computed and where its answer is decoded."""
FAMILIES = 3
"""Prompts of one family begin alike."""


class Fault(enum.StrEnum):
    """Kinds of injected faults; the run counts each that took effect."""

    KILL_PREFILL = "prefill worker killed"
    KILL_DECODE = "decode worker killed"
    KILL_GATEWAY = "gateway killed"
    PAUSE = "process paused and woken"
    CUT = "network cut both ways"
    CUT_ONE_WAY = "network cut one way"
    SLOW = "network slow"
    RESET = "connection reset"
    FLIP = "bit flipped in a frame"
    TRICKLE = "byte trickled"
    LOST_SEALS = "decode worker lost the seals of a link"
    OTHER_TOKEN = "first token altered on its way to the decode worker"
    CORRUPT = "landed bytes flipped, torn, swapped or stale"
    SCATTER_ERROR = "scatter raised"
    SOURCE_ERROR = "source of a put raised"
    DUPLICATE = "message repeated after reconnecting"
    DELAY = "message delayed"
    LOSS = "message lost with its link"
    LATE_WRITE = "write held up"
    HICCUP = "engine stopped for a while"
    DRAIN = "worker drained"
    CANCEL = "client gone"
    MASS_CANCEL = "all clients of a gateway gone"
    CHANGE_ROLE = "worker told to flip"


@dataclass(frozen=True, slots=True)
class FaultPlan:
    at_s: float
    kind: enum.StrEnum
    pick: float
    """In [0, 1): which of the possible victims."""
    amount: float
    """In [0, 1): how long or how much."""


@dataclass(frozen=True, slots=True)
class RequestPlan:
    number: int
    at_s: float
    gateway: float
    tokens: tuple[int, ...]
    n: int
    sampling: SamplingParams
    tenant: str
    limit_s: float
    cancel_after_s: float | None
    stop_after: int | None
    """A stop string is found after this many tokens of the first choice, and two more of each further one."""
    pattern: str | None = None
    """The grammar that its answer must match, or begin to match where its length ends it."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The fleet and its sizes."""

    gateways: int = 1
    prefills: int = 2
    decodes: int = 2
    prefill_blocks: int = 32
    decode_blocks: int = 32
    decode_block_tokens: int = 4
    landing_bytes: int = 2_048
    slots: int = 6
    max_waiting: int = 32
    step_tokens: int = 24
    one_sided: bool = False
    local: bool = False
    """Decode workers prefill by themselves when no prefill worker is linked."""
    keeps_answers: bool = False
    """Prefill workers decode what they computed when no decode worker is linked."""
    tpot_s: float | None = None
    """Prompts go where they serve this target between tokens better; None: all are handed over."""
    flexible: bool = False
    """All workers have both sides, and change their roles."""
    skewed: bool = False
    """One more pair of workers has another revision."""
    message_s: float = 0.01
    ahead: float = 0.5
    """Share of steps that are still running when they are asked for."""


@dataclass(frozen=True, slots=True)
class Scenario:
    seed: int
    shape: Shape
    requests: tuple[RequestPlan, ...]
    faults: tuple[FaultPlan, ...]

    def without(self, requests: frozenset[int] = frozenset(), faults: frozenset[int] = frozenset()) -> Scenario:
        """The same world without the requests and faults at these places."""
        return replace(
            self,
            requests=tuple(request for place, request in enumerate(self.requests) if place not in requests),
            faults=tuple(fault for place, fault in enumerate(self.faults) if place not in faults),
        )


WEIGHTS = {
    Fault.KILL_PREFILL: 2,
    Fault.KILL_DECODE: 2,
    Fault.KILL_GATEWAY: 1,
    Fault.PAUSE: 3,
    Fault.CUT: 3,
    Fault.CUT_ONE_WAY: 3,
    Fault.SLOW: 3,
    Fault.RESET: 5,
    Fault.CORRUPT: 9,
    Fault.FLIP: 2,
    Fault.TRICKLE: 2,
    Fault.OTHER_TOKEN: 3,
    Fault.SCATTER_ERROR: 2,
    Fault.SOURCE_ERROR: 2,
    Fault.DUPLICATE: 3,
    Fault.DELAY: 24,
    Fault.LATE_WRITE: 8,
    Fault.HICCUP: 6,
    Fault.DRAIN: 1,
    Fault.CANCEL: 4,
    Fault.MASS_CANCEL: 1,
}


def scenario(seed: int, structured: float = STRUCTURED, flexible: float = FLEXIBLE) -> Scenario:
    """The world of a seed: calm, rough or deadly; roomy or with tiny pools. `structured`: which share of its requests
    follows a grammar. `flexible`: in which share of the worlds workers flip; the others are the same whatever it is.
    """
    dice = random.Random(seed)
    shape = replace(
        draw_shape(dice),
        keeps_answers=random.Random(f"keeps {seed}").random() < 0.3,
    )
    placing = random.Random(f"places {seed}")
    if placing.random() < PLACED:
        shape = replace(shape, keeps_answers=True, tpot_s=placing.choice((0.002, 0.01, 0.05)))
    if random.Random(f"flexible {seed}").random() < flexible:
        shape = replace(shape, flexible=True, decodes=2)
    asked = [_request(dice, number) for number in range(dice.randint(6, 14))]
    requests = tuple(_in_a_shape(plan, random.Random(f"grammar {seed} {plan.number}"), structured) for plan in asked)
    count = 0 if dice.random() < 0.06 else dice.choice((10, 30, 60, 90, 120))
    kinds = dice.choices(list(WEIGHTS), list(WEIGHTS.values()), k=count)
    faults = (FaultPlan(dice.random() * FAULTS_UNTIL_S, kind, dice.random(), dice.random()) for kind in kinds)
    planned = [*faults, *_rare(seed, count), *(_flips(seed) if shape.flexible else ())]
    return Scenario(seed, shape, requests, tuple(sorted(planned, key=lambda event: event.at_s)))


def _rare(seed: int, count: int) -> list[FaultPlan]:
    """A fault that stays until an operator acts: at most one, and none in a calm world."""
    dice = random.Random(f"rare {seed}")
    if not count or dice.random() > RARE:
        return []
    return [FaultPlan(dice.random() * FAULTS_UNTIL_S / 2, Fault.LOST_SEALS, dice.random(), dice.random())]


def _flips(seed: int) -> list[FaultPlan]:
    """Flips are no harm: calm worlds have them, too."""
    dice = random.Random(f"flips {seed}")
    times = [dice.random() * FAULTS_UNTIL_S for _ in range(dice.choice((1, 3, 8)))]
    return [FaultPlan(at_s, Fault.CHANGE_ROLE, dice.random(), dice.random()) for at_s in times]


def draw_shape(dice: random.Random) -> Shape:
    """A fleet of some sizes."""
    block_tokens = dice.choice((4, 4, 2))
    least = CONTEXT_TOKENS // block_tokens
    return Shape(
        gateways=dice.choice((1, 1, 2, 3)),
        prefills=dice.choice((1, 2, 2)),
        decodes=dice.choice((1, 2, 2)),
        prefill_blocks=dice.choice((16, 24, 48)),
        decode_blocks=dice.choice((least, least + 6, least * 3)),
        decode_block_tokens=block_tokens,
        landing_bytes=dice.choice((512, 1_024, 4_096)),
        slots=dice.choice((3, 6)),
        max_waiting=dice.choice((3, 32, 32)),
        step_tokens=dice.choice((8, 24, 64)),
        one_sided=dice.random() < 0.35,
        local=dice.random() < 0.3,
        skewed=dice.random() < 0.12,
        message_s=dice.choice((0.002, 0.01, 0.06)),
        ahead=dice.choice((0.0, 0.5, 0.9)),
    )


def _in_a_shape(plan: RequestPlan, dice: random.Random, share: float) -> RequestPlan:
    """Some requests follow a grammar: they end by its end, or by their length."""
    if dice.random() >= share:
        return plan
    pattern = dice.choice(toy_grammars.PATTERNS)
    bound = toy_grammars.grammar(pattern)
    sampling = msgspec.structs.replace(plan.sampling, grammar=bound, stop_token_ids=(toy_grammars.END,), min_tokens=0)
    return replace(plan, sampling=sampling, pattern=pattern)


def _request(dice: random.Random, number: int) -> RequestPlan:
    family, length = dice.randrange(FAMILIES), dice.choice((1, 3, 4, 8, 12, 16, 23, 32, 40, 48))
    shared = dice.choice((0, 4, 8, length))
    own = [dice.randrange(50) for _ in range(length)]
    tokens = tuple((family * 7 + i * 3) % 50 if i < shared else own[i] for i in range(length))
    max_tokens = dice.choice((1, 2, 5, 9, 14))
    n = dice.choice((1, 1, 1, 2, 3))
    sampling = SamplingParams(
        max_tokens=max_tokens,
        seed=dice.randrange(1 << 30),
        min_tokens=dice.choice((0, 0, min(3, max_tokens))),
        stop_token_ids=tuple(dice.sample(range(50), dice.choice((0, 0, 2, 6)))),
    )
    return RequestPlan(
        number,
        dice.random() ** 1.5 * 4.0,
        dice.random(),
        tokens,
        n,
        sampling,
        dice.choice(("", "", "tenant a", "tenant b")),
        dice.choice((1.5, 12.0, 12.0, 12.0, 12.0)),
        dice.random() ** 2 * 3.0 if dice.random() < 0.12 else None,
        dice.randrange(1, max_tokens + 1) if dice.random() < 0.12 else None,
    )
