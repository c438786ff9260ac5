"""Sessions on two GPUs as predicted: the real schedulers and the gateway's real routing on a virtual clock.

    python -m bench sessions_predicted --load two-gpus --mode never always auto

Step times are those of one H200 with Llama-3.1-8B's shape, with KV and attention as measured for long contexts
(lab/sessions.md). Turns are sent in a closed loop; prefix caches are the engine's own, and the gateway knows what they
hold and what was sent. Left out: hosts between steps, clients, several gateway processes, and refusals.
"""

from __future__ import annotations

import argparse
import heapq
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, Final, NamedTuple, cast

import numpy as np
from bench.results import Cell, percentile, table
from bench.serving.goodput_predicted import BLOCK_TOKENS, PRINT, World
from bench.serving.mixes import Point
from bench.serving.pools import ONE_EACH, Pools
from bench.serving.predicted_gateway import PredictedGateway
from bench.serving.predicted_worker import STEP_TIMES, Machine, StepTimes

from baton_control.sizing.inputs.request_shape import RequestShape
from baton_control.sizing.inputs.workload import workload_of
from baton_engine.scheduling.engine_config import EngineConfig
from baton_engine.scheduling.events import Drawn, SequenceSpec
from baton_engine.scheduling.scheduler import Scheduler
from baton_engine.scheduling.step_load import LoadMeter
from baton_gateway.workers.route import Route, RoutePolicy, RouteQuery, pick
from baton_simulate.sessions.session_generator import generated_load
from baton_simulate.sessions.session_load import IdealCache, SessionLoad, SessionTurn
from baton_simulate.sessions.session_shapes import SHAPES, drawn_shape
from baton_simulate.sessions.turn_order import LoopLimits, TurnOrder
from baton_wire.messages.values import RequestKey, Role, SamplingParams
from baton_wire.rules.prefix_digests import block_digest, root_digest
from baton_wire.rules.prompt_placement import LatencyTargets

MODES: Final = ("never", "always", "auto")
LONG_CONTEXTS: Final[StepTimes] = replace(STEP_TIMES["h200"], kv_token_s=30e-9, pair_s=0.95e-9)
"""KV by the paged kernel at 128 rows of 4k, 473 to 484 µs a layer; pairs by prompts of 16k and 32k."""
KV_BLOCKS: Final = 13_000
"""Blocks of 64 tokens in what an H200 has besides the weights."""
MOST_TOKENS: Final = 131_072


def two_gpus(
    sessions: int = 24, first: int = 24_000, turns: int = 4, new: int = 1_500, output: int = 200
) -> SessionLoad:
    """The closed loop that was measured on two H200s: all sessions begin at once, and none thinks."""
    places: list[SessionTurn] = []
    latest: dict[int, int] = {}
    number = 0
    for turn in range(turns):
        for session in range(sessions):
            before = () if turn == 0 else places[latest[session]].prompt
            number += 2
            added = ((number, first),) if turn == 0 else ((number, output), (number + 1, new))
            after = () if turn == 0 else (latest[session],)
            latest[session] = len(places)
            places.append(SessionTurn(session, (*before, *added), output, after))
    return SessionLoad("two-gpus", tuple(places))


def load_named(name: str, sessions: int | None, seed: int) -> SessionLoad:
    """`two-gpus`, a named shape, or a drawn shape's number."""
    if name == "two-gpus":
        return two_gpus(24 if sessions is None else sessions)
    shape = SHAPES[name] if name in SHAPES else drawn_shape(int(name))
    return generated_load(shape if sessions is None else replace(shape, sessions=sessions), seed, name)


class TurnTimes(NamedTuple):
    """A turn that was sent, and the times of its answer."""

    turn: SessionTurn
    ttft_s: float
    tpot_s: float
    is_whole: bool = True
    """False: the answer was refused or broke off, and its times do not count."""

    def is_within(self, targets: LatencyTargets) -> bool:
        return self.is_whole and self.ttft_s <= targets.ttft_s and self.tpot_s <= targets.tpot_s


class SessionGateway(PredictedGateway):
    """A gateway process that knows what workers have cached, and what it sent."""

    def __init__(self, world: SessionWorld, *parts: Any) -> None:
        super().__init__(*parts)
        self._world = world

    def _choose(self, request: int) -> Route:
        world = self._world
        prompt, output = world.prompt_tokens(request), world.load.turns[request].output_tokens
        cached = world.cached(request)
        query = RouteQuery(
            *(self._fingerprint, prompt, prompt + output, 1, frozenset(), cached, self._dice.getrandbits(64)),
            waiting=self._held.num_in_time,
        )
        route = pick(query, self._views(), self._policy)
        assert isinstance(route, Route), str(route)
        return route

    def _send(self, request: int, route: Route) -> None:
        prompt = self._world.prompt_tokens(request)
        missing = prompt if route.missing_tokens is None else route.missing_tokens
        received = prompt if route.received_tokens is None else route.received_tokens
        self.linked[route.decode].record_sent(received if route.prefill else missing, is_computed=route.prefill is None)
        if route.prefill is not None:
            self.linked[route.prefill].record_sent(missing)
        self.local += route.is_decode_local
        self.kept += route.is_prefill_local
        self._send_to(request, route)


class SessionWorld(World):
    """Workers with prefix caches, their gateways, and clients that send a turn after the one before."""

    def __init__(
        self,
        load: SessionLoad,
        limits: LoopLimits,
        mode: str,
        targets: LatencyTargets,
        times: StepTimes,
        pools: Pools = ONE_EACH,
        gateways: int = 1,
    ) -> None:
        self.load, self._targets = load, targets
        self._ids: dict[int, tuple[int, ...]] = {}
        self._digests_of: dict[int, list[bytes]] = {}
        self._ideal, self._order = IdealCache(), TurnOrder(load, limits)
        self.found: dict[int, int] = {}
        self.ideal_tokens: dict[int, int] = {}
        self.sent_s: dict[int, float] = {}
        self._sent: dict[bytes, dict[int, None]] = {}
        """Turns that each worker was sent and has not computed or received."""
        shapes = [RequestShape(turn.prompt_tokens, turn.output_tokens) for turn in load.turns]
        point = Point("sessions", mode, 1e3 * targets.tpot_s, 0.0)
        workload = workload_of(np.zeros(len(shapes)), shapes, load.name)
        super().__init__(point, workload, 256, 8_192, times, pools=pools)
        self._pools = pools
        policy = RoutePolicy(mode != "never", True, targets if mode == "auto" else None)
        parts = point, self._workload, policy, PRINT, self.machines, lambda: self.now, self.at, self._send
        self.gateways = [
            SessionGateway(self, *parts, partial(self._told_holding, place), self._dice, targets.ttft_s)
            for place in range(gateways)
        ]

    def _machine(self, place: int, role: Role, max_sequences: int, prefill_step_tokens: int) -> Machine:
        machine = super()._machine(place, role, max_sequences, prefill_step_tokens)
        config = EngineConfig(KV_BLOCKS, BLOCK_TOKENS, max_sequences, MOST_TOKENS, max_step_tokens=prefill_step_tokens)
        hello = cast(Any, machine.hello)
        hello.max_context_tokens, hello.blocks_total = MOST_TOKENS, KV_BLOCKS
        self._sent[hello.epoch] = {}
        return replace(machine, scheduler=Scheduler(config), meter=LoadMeter(max_sequences))

    # What is cached ---------------------------------------------------------------------------------------------------

    def prompt_tokens(self, turn: int) -> int:
        return self.load.turns[turn].prompt_tokens

    def ids(self, turn: int) -> tuple[int, ...]:
        ids = self._ids.get(turn)
        if ids is None:
            segments = self.load.turns[turn].prompt
            ids = self._ids[turn] = tuple(
                (7_919 * number + place) % 120_000 for number, tokens in segments for place in range(tokens)
            )
        return ids

    def cached(self, turn: int) -> dict[bytes, int]:
        """Tokens of the prompt that each worker has cached or was sent."""
        ids, cached = self.ids(turn), dict[bytes, int]()
        digests = self._digests(turn)
        for machine in self.machines:
            blocks = len(machine.scheduler.pool.match(digests, (len(ids) - 1) // BLOCK_TOKENS))
            tokens = BLOCK_TOKENS * blocks
            for other in self._sent[machine.hello.epoch]:
                tokens = max(tokens, common_tokens(self.load.turns[turn], self.load.turns[other]))
            cached[machine.hello.epoch] = min(tokens, len(ids) - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        return {epoch: tokens for epoch, tokens in cached.items() if tokens}

    def _digests(self, turn: int) -> list[bytes]:
        if turn in self._digests_of:
            return self._digests_of[turn]
        ids, digests = self.ids(turn), [root_digest("")]
        for start in range(0, len(ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            digests.append(block_digest(digests[-1], ids[start : start + BLOCK_TOKENS]))
        self._digests_of[turn] = digests[1:]
        return digests[1:]

    # The loop of clients ----------------------------------------------------------------------------------------------

    def run_sessions(self) -> None:
        """Send all turns, until the last one has ended."""
        for at_s, turn in self._order.begin():
            self.at(at_s, partial(self._due, turn))
        for machine in self.machines:
            self._report(machine)
        while self._events and not self._order.is_over:
            self.now, _, work = heapq.heappop(self._events)
            work()

    def _due(self, turn: int) -> None:
        if self._order.may_send(turn):
            self.sent_s[turn] = self.now
            self._workload.arrival_s[turn] = self.now
            self.ideal_tokens[turn] = self._ideal.add(self.load.turns[turn].prompt)
            self._arrived(turn)

    def _send(self, request: int, route: Route) -> None:
        super()._send(request, route)
        for epoch in {route.prefill, route.decode} - {None}:
            self._sent[cast(bytes, epoch)][request] = None
        computing = self._by_epoch[route.prefill or route.decode]
        cached = self.cached(request).get(computing.hello.epoch, 0)
        self.found.setdefault(request, self.prompt_tokens(request) - (route.missing_tokens or 0) if cached else 0)

    def _spec(self, request: int, hold: bool = False) -> SequenceSpec:
        turn, ids = self.load.turns[request], self.ids(request)
        sampling = SamplingParams(max_tokens=turn.output_tokens, temperature=0.0)
        tpot_s = None if hold else self._targets.tpot_s
        key = RequestKey(request.to_bytes(16, "big"), 0)
        route = self._routes[request]
        missing = None if route.missing_tokens is None else max(1, route.missing_tokens)
        return SequenceSpec(key, ids, len(ids), (0,), sampling, "", 1e9, hold, tpot_s=tpot_s, missing_tokens=missing)

    def _drawn(self, request: int, event: Drawn) -> None:
        super()._drawn(request, event)
        for sent in self._sent.values():
            sent.pop(request, None)
        if event.first_index == 0:
            self._digests_of.pop(request, None)
        if event.first_index + len(event.ids) >= self.load.turns[request].output_tokens:
            done_s = self._last_s[request]
            self.at(done_s, partial(self._ended, request))

    def _ended(self, turn: int) -> None:
        for at_s, following in self._order.ended(turn, self.now):
            self.at(at_s, partial(self._due, following))

    # What came of it --------------------------------------------------------------------------------------------------

    def _times_of(self, turn: int) -> TurnTimes:
        first_s, sent = self._first_s[turn], self.load.turns[turn]
        tpot_s = (self._last_s[turn] - first_s) / max(1, sent.output_tokens - 1)
        return TurnTimes(sent, first_s - self.sent_s[turn], tpot_s)

    def row(self) -> dict[str, Cell]:
        """The figures of a run that is over. Times are ms, rates a second."""
        turns = [self._times_of(turn) for turn in sorted(self._last_s)]
        seconds = max(self._last_s.values())
        row: dict[str, Cell] = {"load": self.load.name, "mode": self._point.mode, "turns": len(turns)}
        row["ideal %"] = _percent(sum(self.found.values()), sum(self.ideal_tokens.values()))
        row |= turn_figures(turns, self._targets, seconds)
        row["local %"], row["kept %"] = (
            round(100 * sum(numbers) / len(turns), 1)
            for numbers in zip(*((gateway.local, gateway.kept) for gateway in self.gateways), strict=True)
        )
        for letter, machine in zip(self._pools.letters, self.machines, strict=True):
            row[f"{letter} busy %"] = round(100 * machine.busy_s / seconds, 1)
        return row


def turn_figures(turns: Sequence[TurnTimes], targets: LatencyTargets, seconds: float) -> dict[str, Cell]:
    """What kept the targets, and the times of whole answers. Times are ms, rates a second; None where no turn has
    the figure."""
    whole = [turn for turn in turns if turn.is_whole]
    later = [turn for turn in turns if turn.turn.after]
    failed_sessions = {turn.turn.session for turn in turns if not turn.is_within(targets)}
    sessions = {turn.turn.session for turn in turns}
    row: dict[str, Cell] = {}
    for name, some in (("within %", turns), ("later within %", later)):
        row[name] = _percent(sum(turn.is_within(targets) for turn in some), len(some))
    row["sessions %"] = _percent(len(sessions) - len(failed_sessions), len(sessions))
    for name, times in (
        ("TTFT", [turn.ttft_s for turn in whole]),
        ("later TTFT", [turn.ttft_s for turn in whole if turn.turn.after]),
        ("TPOT", [turn.tpot_s for turn in whole]),
    ):
        for percent in (50, 95):
            row[f"{name} p{percent}"] = round(1e3 * percentile(times, percent), 1) if times else None
    row["tok/s"] = round(sum(turn.turn.output_tokens for turn in whole) / seconds)
    return row


def _percent(part: int, whole: int) -> float | None:
    return round(100 * part / whole, 1) if whole else None


def common_tokens(turn: SessionTurn, other: SessionTurn) -> int:
    """Tokens with which two prompts begin alike."""
    tokens = 0
    for (number, length), (other_number, other_length) in zip(turn.prompt, other.prompt, strict=False):
        if number != other_number:
            break
        tokens += min(length, other_length)
        if length != other_length:
            break
    return tokens


def load_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser of the loads, their modes and their clients."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", nargs="+", default=["two-gpus"], help="two-gpus, a shape, or a drawn shape's number")
    parser.add_argument("--mode", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--pools", type=Pools.parse, default=ONE_EACH, metavar="P+D", help="workers (default 1+1)")
    parser.add_argument(
        "--gateways", type=int, nargs="+", default=[1], metavar="N", help="gateways, in turn (default 1)"
    )
    parser.add_argument("--sessions", type=int, help="number of sessions (default: the load's own)")
    parser.add_argument("--users", type=int, help="sessions at once (default: all)")
    parser.add_argument("--think-scale", type=float, default=1.0)
    parser.add_argument("--duration", type=float, help="turns that are due later are not sent (default: all are)")
    return parser


def main() -> None:
    parser = load_parser(__doc__)
    parser.add_argument("--ttft", type=float, default=2.0, help="target in seconds (default %(default)s)")
    parser.add_argument("--tpot", type=float, default=0.015, help="target in seconds (default %(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    options = parser.parse_args()
    rows = []
    for name in options.load:
        for seed in options.seeds:
            load = load_named(name, options.sessions, seed)
            for mode, gateways in product(options.mode, options.gateways):
                limits = LoopLimits(options.users, None, options.think_scale, duration_s=options.duration)
                targets = LatencyTargets(options.ttft, options.tpot)
                world = SessionWorld(load, limits, mode, targets, LONG_CONTEXTS, options.pools, gateways)
                world.run_sessions()
                rows.append(world.row() | {"gateways": gateways})
                print(json.dumps(rows[-1]), flush=True)
    print(table(list(rows[0]), rows))


if __name__ == "__main__":
    main()
