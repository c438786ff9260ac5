"""Goodput of two workers as predicted: the real schedulers and the gateway's real rules on a virtual clock.

    python -m bench goodput_predicted --trace azure_llm_2023_conv.csv conv:auto:10:34 …

Points are those of `python -m bench goodput`. Steps take what was measured on H200s with Llama-3.1-8B's shape
(lab/engine-gpu.md); a hand-over, a message, a report and a gateway's own work take as long as set here. Left out:
whatever the host of a worker does between steps, and clients.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Final, cast

import msgspec
from bench.results import Cell, table
from bench.serving.mixes import TTFT_S, Point, Served, shares, within
from bench.serving.pools import ONE_EACH, Pools
from bench.serving.predicted_gateway import PredictedGateway
from bench.serving.predicted_worker import STEP_TIMES, Machine, StepTimes

from baton_control.sizing.inputs.workload import Workload
from baton_engine.scheduling.engine_config import EngineConfig
from baton_engine.scheduling.events import Drawn, Failed, Prefilled, Reserved, SequenceSpec
from baton_engine.scheduling.scheduler import Scheduler
from baton_engine.scheduling.step_load import LoadMeter
from baton_gateway.workers.route import Route, RoutePolicy
from baton_wire.liveness import REPORT_S
from baton_wire.messages.gateway_link import HeldTurn, Hello, Holding
from baton_wire.messages.values import PairFingerprint, Reason, RequestKey, Role, SamplingParams
from baton_wire.rules.prompt_placement import LatencyTargets
from baton_worker.serving.gateway_links import HURRIED_S, urgency_of

BLOCK_TOKENS: Final = 64
MESSAGE_S: Final = 0.001
"""From the gateway to a worker's engine, and back to the client."""
REQUEST_S: Final = 0.0005
PROMPT_TOKEN_S: Final = 2.2e-6
TOKEN_S: Final = 40e-6
"""Times of a gateway process, which does one thing after another: to read a request, and for each token of its answer.
From the CPU time that gateways took (lab/goodput.md)."""
HAND_OVER_S: Final = 0.0035
"""From the first token until the KV is verified at the decode worker."""
PRINT: Final = PairFingerprint(1, "a" * 64, "bfloat16", "bfloat16", 32, 8, 128, "b" * 64, "c" * 64)


GATEWAYS: Final = "processes, 1 to 16 (default %(default)s)"
RECORDED_BLOCKS: Final = {"prefill-0": 2_432, "decode-0": 7_552, "decode-1": 2_432}
"""KV blocks of the workers that `goodput` starts on two H100, where two share a GPU."""


class World:
    """Workers, gateway and clients on one heap of events."""

    def __init__(  # noqa: PLR0913 - the whole simulated deployment, from its benches
        self,
        point: Point,
        workload: Workload,
        max_sequences: int,
        prefill_step_tokens: int,
        times: StepTimes,
        schedulers: dict[str, Scheduler] | None = None,
        gateways: int = 1,
        pools: Pools = ONE_EACH,
    ) -> None:
        """`schedulers`: by worker, those of the points before, which keep their prefixes; then a prompt of a place has
        the ids that it had in those. None: all are fresh, and nothing is cached."""
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._point, self._workload, self._times = point, workload, times
        self._dice = random.Random(1)
        targets = LatencyTargets(TTFT_S, point.tpot_ms / 1e3)
        policy = RoutePolicy(point.mode != "never", True, targets if point.mode == "auto" else None)
        self._schedulers = schedulers
        roles = pools.roles(point.mode)
        self.machines = [
            self._machine(place, role, max_sequences, prefill_step_tokens) for place, role in enumerate(roles)
        ]
        self._by_epoch = {machine.hello.epoch: machine for machine in self.machines}
        self._draws = random.Random(2)
        self.gateways = [
            PredictedGateway(
                *(point, workload, policy, PRINT, self.machines),
                lambda: self.now,
                self.at,
                self._send,
                partial(self._told_holding, place),
                self._dice,
            )
            for place in range(gateways)
        ]
        self._gateway_of: dict[int, PredictedGateway] = {}
        self._routes: dict[int, Route] = {}
        self._first_s: dict[int, float] = {}
        self._second_s: dict[int, float] = {}
        self._last_s: dict[int, float] = {}
        self._first_tokens: dict[int, Prefilled] = {}
        self._reserved: set[int] = set()

    def _machine(self, place: int, role: Role, max_sequences: int, prefill_step_tokens: int) -> Machine:
        is_prefill = role is Role.PREFILL
        name = "decode-0" if place else "prefill-0" if is_prefill else "decode-1"
        caches = self._schedulers is not None
        slots, blocks = max_sequences, RECORDED_BLOCKS[name] if caches else 9_000
        most = prefill_step_tokens if is_prefill else 8_192
        config = EngineConfig(blocks, BLOCK_TOKENS, slots, 20_480, max_step_tokens=most, prefix_cache=caches)
        hello = SimpleNamespace(
            epoch=bytes([place]) * 16,
            role=role,
            served_name="m",
            fingerprint=PRINT,
            pair_port=None if is_prefill else 1,
            max_context_tokens=20_480,
            max_choices=8,
            max_sequences=slots,
            block_tokens=BLOCK_TOKENS,
            blocks_total=blocks,
            keeps_answers=is_prefill,
            encoding=None,
        )
        scheduler = (
            Scheduler(config) if self._schedulers is None else self._schedulers.setdefault(name, Scheduler(config))
        )
        return Machine(role.value, scheduler, cast(Hello, hello), LoadMeter(slots), self._times)

    def at(self, at_s: float, work: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._numbers), work))

    def run(self) -> list[Served]:
        for request, at_s in enumerate(self._workload.arrival_s):
            self.at(float(at_s), lambda request=request: self._arrived(request))  # type: ignore[misc]
        for machine in self.machines:
            self._report(machine)
        while self._events and len(self._last_s) < len(self._workload):
            self.now, _, work = heapq.heappop(self._events)
            work()
            if self.now > self._workload.duration_s + 60:
                break
        return [self._served(request) for request in range(len(self._workload))]

    def _served(self, request: int) -> Served:
        due_s, infinite = float(self._workload.arrival_s[request]), float("inf")
        first, tokens = self._first_s.get(request, infinite), int(self._workload.output_tokens[request])
        if request not in self._last_s:
            return Served(due_s, infinite, infinite, infinite)
        second = self._second_s.get(request, first)
        return Served(due_s, first - due_s, (self._last_s[request] - first) / max(1, tokens - 1), second - first)

    # Between gateways and workers -------------------------------------------------------------------------------------

    def _report(self, machine: Machine) -> None:
        """Workers report ten times a second; with several gateways more often, as `GatewayLinks` does it."""
        machine.told_s = self.now
        state, turns = machine.report(), machine.holders.turns(list(range(len(self.gateways))))
        machine.came.reported(state.waiting_tokens + state.computing_tokens)
        delay_s = MESSAGE_S if len(self.gateways) > 1 else 0.0
        for place, gateway in enumerate(self.gateways):
            turn = HeldTurn(*turns[place]) if place in turns else None
            message = msgspec.structs.replace(state, turn=turn, gateways=len(self.gateways))
            if delay_s:
                self.at(self.now + delay_s, partial(gateway.reported, machine.hello.epoch, message))
            else:
                gateway.reported(machine.hello.epoch, message)
        self._report_at(machine, self.now + REPORT_S)

    def _report_at(self, machine: Machine, at_s: float) -> None:
        """The next report, unless one comes before."""
        machine.reports_s = at_s
        self.at(at_s, lambda: self._report(machine) if machine.reports_s == at_s else None)

    def _hurry(self, machine: Machine) -> None:
        at_s = max(self.now, machine.told_s + HURRIED_S)
        if at_s < machine.reports_s:
            self._report_at(machine, at_s)

    def _told_holding(self, place: int, epoch: bytes, holding: Holding) -> None:
        self.at(self.now + MESSAGE_S, lambda: self._hears(place, epoch, holding))

    def _hears(self, place: int, epoch: bytes, holding: Holding) -> None:
        machine = self._by_epoch[epoch]
        if len(self.gateways) > 1 and machine.holders.update(place, urgency_of(holding, self.now)):
            self._hurry(machine)

    def _arrived(self, request: int) -> None:
        gateway = self._gateway_of[request] = self.gateways[self._draws.randrange(len(self.gateways))]
        reading_s = REQUEST_S + PROMPT_TOKEN_S * int(self._workload.prompt_tokens[request])
        self.at(gateway.done_s(self.now, reading_s), lambda: gateway.arrived(request))

    def _send(self, request: int, route: Route) -> None:
        self._routes[request] = route
        decode = self._by_epoch[route.decode]
        if route.prefill is None:
            self.at(self.now + MESSAGE_S, lambda: self._submit(decode, request))
            return
        prefill = self._by_epoch[route.prefill]
        self.at(
            self.now + MESSAGE_S,
            lambda: self._tell(decode, lambda: decode.scheduler.reserve(self._spec(request), self.now)),
        )
        self.at(self.now + MESSAGE_S, lambda: self._submit(prefill, request, hold=True))

    def _submit(self, machine: Machine, request: int, *, hold: bool = False) -> None:
        self._tell(machine, lambda: machine.scheduler.submit(self._spec(request, hold), self.now))
        tokens = int(self._workload.prompt_tokens[request])
        if len(self.gateways) > 1 and machine.came.is_much(tokens):
            self._hurry(machine)

    def _spec(self, request: int, hold: bool = False) -> SequenceSpec:
        prompt, output = int(self._workload.prompt_tokens[request]), int(self._workload.output_tokens[request])
        sampling = SamplingParams(max_tokens=output, temperature=0.0)
        tpot_s = None if hold else self._point.tpot_ms / 1e3
        key = RequestKey(request.to_bytes(16, "big"), 0)
        ids = (5,) * prompt if self._schedulers is None else tuple(range(request << 15, (request << 15) + prompt))
        return SequenceSpec(key, ids, prompt, (0,), sampling, "", 1e9, hold, tpot_s=tpot_s)

    # The workers ------------------------------------------------------------------------------------------------------

    def _tell(self, machine: Machine, verb: Callable[[], None]) -> None:
        verb()
        self._moved(machine)

    def _moved(self, machine: Machine) -> None:
        self._events_of(machine)
        for end_s in machine.launch(self.now):
            self.at(end_s, lambda: self._stepped(machine))
        looks_s = self.now + machine.spare_s(self.now)
        if looks_s > self.now and looks_s != machine.looks_s:
            machine.looks_s = looks_s
            self.at(looks_s, lambda: self._moved(machine))
        self._events_of(machine)

    def _stepped(self, machine: Machine) -> None:
        machine.collect(self.now)
        self._moved(machine)

    def _events_of(self, machine: Machine) -> None:
        for event in machine.scheduler.events():
            request = int.from_bytes(event.key.request, "big")
            if isinstance(event, Drawn):
                self._drawn(request, event)
            elif isinstance(event, Prefilled):
                self._first_tokens[request] = event
                machine.scheduler.granted(event.key, self.now)
                self._land(request)
            elif isinstance(event, Reserved):
                self._reserved.add(request)
                self._land(request)
            elif isinstance(event, Failed):
                if event.reason is not Reason.NO_CAPACITY:
                    raise RuntimeError(str(event))
                for worker in self.machines:  # the request stays unanswered; a gateway would retry, in vain for as long
                    worker.scheduler.cancel(event.key, None, self.now)

    def _land(self, request: int) -> None:
        if request in self._reserved and request in self._first_tokens:
            self.at(self.now + HAND_OVER_S, lambda: self._landed(request))

    def _landed(self, request: int) -> None:
        route, done = self._routes[request], self._first_tokens[request]
        assert route.prefill is not None
        decode, prefill = self._by_epoch[route.decode], self._by_epoch[route.prefill]
        self._tell(prefill, lambda: prefill.scheduler.release(done.key, self.now))
        self._tell(decode, lambda: decode.scheduler.landed(done.key, done.first_tokens, self.now))

    def _drawn(self, request: int, event: Drawn) -> None:
        at_s = self._gateway_of[request].done_s(self.now + MESSAGE_S, TOKEN_S * len(event.ids))
        if event.first_index == 0:
            self._first_s.setdefault(request, at_s)
        elif event.first_index == 1:
            self._second_s.setdefault(request, at_s)
        if event.first_index + len(event.ids) >= int(self._workload.output_tokens[request]):
            self._last_s.setdefault(request, at_s)


def predict_point(  # noqa: PLR0913 - as of `World`
    point: Point,
    workload: Workload,
    max_sequences: int,
    prefill_step_tokens: int,
    times: StepTimes,
    schedulers: dict[str, Scheduler] | None = None,
    gateways: int = 1,
    pools: Pools = ONE_EACH,
) -> dict[str, Cell]:
    """The point's row. `schedulers`: as of `World`."""
    world = World(point, workload, max_sequences, prefill_step_tokens, times, schedulers, gateways, pools)
    served = world.run()
    row: dict[str, Cell] = {"mix": point.mix, "mode": point.mode, "target": point.tpot_ms, "req/s": point.rate}
    row |= shares(served) | {"% within": within(served, point.tpot_ms)}
    row["local %"] = round(100 * sum(gateway.local for gateway in world.gateways) / len(workload), 1)
    row["kept %"] = round(100 * sum(gateway.kept for gateway in world.gateways) / len(workload), 1)
    row["held %"] = round(100 * sum(gateway.held for gateway in world.gateways) / len(workload), 1)
    for letter, machine in zip(pools.letters, world.machines, strict=True):
        row[f"{letter} busy %"] = round(100 * machine.busy_s / max(world.now, 1e-9), 1)
        row[f"{letter} step ms"] = round(1e3 * machine.busy_s / max(1, machine.steps), 2)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("points", nargs="+", type=Point.several, metavar="MIX:MODE:TPOT_MS:RATE")
    parser.add_argument("--trace", type=Path, required=True, help="of Azure's conversations, for their lengths")
    parser.add_argument("--seconds", type=float, default=30.0, help="of arrivals a point (default %(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--max-sequences", type=int, default=256)
    parser.add_argument("--prefill-step-tokens", type=int, default=8_192)
    parser.add_argument("--pools", type=Pools.parse, default=ONE_EACH, metavar="P+D", help="workers (default 1+1)")
    parser.add_argument("--machine", choices=STEP_TIMES, default="h200", help="whose step times (default %(default)s)")
    parser.add_argument("--gateways", type=int, choices=range(1, 17), default=1, metavar="N", help=GATEWAYS)
    parser.add_argument(
        "--shared-prompts",
        action="store_true",
        help="points in turn on the same workers, a place's prompt the same in all: as in runs before 26 November 2026",
    )
    options = parser.parse_args()
    points = [point for several in options.points for point in several]
    rows = []
    schedulers: dict[str, Scheduler] | None = {} if options.shared_prompts else None
    for point in points:
        for seed in options.seeds:
            workload = point.workload(options.trace, options.seconds, seed)
            rows.append(
                predict_point(
                    *(point, workload, options.max_sequences, options.prefill_step_tokens),
                    STEP_TIMES[options.machine],
                    *(schedulers, options.gateways, options.pools),
                )
            )
            print(json.dumps(rows[-1]), flush=True)
    print(table(_columns(rows), rows))


def _columns(rows: Sequence[dict[str, Cell]]) -> list[str]:
    return list(rows[0])


if __name__ == "__main__":
    main()
