"""The degrees that `baton plan` names, and the best of a sweep over all of them on the simulator.

python -m bench sizing_degrees --split development

plays each degree of each pool under rising loads: pools of eight accelerators, Poisson arrivals, lognormal lengths that
the choice does not know. A pair of degrees costs the accelerators of both pools for one request a second. Degrees were
chosen on the models of `development`; those of `judging` are for looking once.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import ceil, inf

import numpy as np

from baton_control.errors import ManifestError
from baton_control.sizing.decision.degree_choice import POOL_ACCELERATORS, PlannedLoad, choose_degrees, mean_mix
from baton_control.sizing.inputs.model_shape import LLAMA_8B, LLAMA_70B, LayerKind, ModelShape
from baton_control.sizing.inputs.roofline import Degrees, worker_model
from baton_control.sizing.inputs.sizing_spec import Targets
from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_control.sizing.inputs.workload import Workload
from baton_control.sizing.simulator.simulator import Simulator
from baton_control.spec.tensor_parallel import DEGREES
from baton_wire.messages.values import POOL_ROLES, Role
from baton_wire.rules.hardware import H100, H200, Accelerator

MAX_STEP_TOKENS = 4096
REQUESTS = 1600
SEED = 11
SIGMA = 0.7
"""Of the logarithms of lengths."""
RESOLUTION = 1.02


@dataclass(frozen=True, slots=True)
class Subject:
    """One model and the degrees that its format allows."""

    shape: ModelShape
    degrees: tuple[int, ...] = DEGREES


@dataclass(frozen=True, slots=True)
class Aim:
    """Targets and the lengths of the requests that they are for."""

    name: str
    targets: Targets
    prompt: int
    output: int


QWEN3_32B = ModelShape("qwen3-32b", 64, 5120, 64, 8, 128, 25_600, 151_936, False, max_context_tokens=40_960)
QWEN3_30B_A3B = ModelShape(
    "qwen3-30b-a3b", 48, 2048, 32, 4, 128, 0, 151_936, False, max_context_tokens=40_960,
    expert_layers=48, experts=128, experts_per_token=8, expert_inner=768,
)  # fmt: skip
GPT_OSS_120B = ModelShape(
    "gpt-oss-120b", 36, 2880, 64, 8, 64, 0, 201_088, False, layer_weight_bytes=0.55,
    expert_layers=36, experts=128, experts_per_token=4, expert_inner=2880,
    kinds=(LayerKind(128, 18, 18), LayerKind(None, 18, 18)),
)  # fmt: skip
SPLITS = {
    "development": (Subject(LLAMA_8B), Subject(LLAMA_70B), Subject(QWEN3_32B)),
    "judging": (
        Subject(replace(LLAMA_70B, name="llama-3.3-70b-fp8", layer_weight_bytes=1.0)),
        Subject(QWEN3_30B_A3B),
        Subject(GPT_OSS_120B, (1, 2)),  # 2,880 columns of an expert are 90 blocks of 32, which 4 does not divide
    ),
}
AIMS = (
    Aim("tight", Targets(0.5, 0.012), 1155, 211),
    Aim("chat", Targets(1.0, 0.030), 1155, 211),
    Aim("documents", Targets(4.0, 0.060), 6000, 400),
)


@dataclass(frozen=True, slots=True)
class Row:
    """The outcome for one model and aim."""

    model: str
    accelerator: str
    aim: str
    named: Degrees
    best: Degrees
    regret: float
    """Accelerators of the named pair for a request a second, over those of the best pair."""
    attained: tuple[float, float]
    """Requests within TTFT and TPOT with both pools together, at the load that both were found to carry."""


def draw(aim: Aim, rate_per_s: float) -> Workload:
    """Requests of an aim at a rate, the same ones at each."""
    random = np.random.default_rng(SEED)
    shift = -(SIGMA**2) / 2
    prompt, output = (
        np.maximum(low, (mean * random.lognormal(shift, SIGMA, REQUESTS)).astype(np.int64))
        for mean, low in ((aim.prompt, 1), (aim.output, 2))
    )
    arrival = np.cumsum(random.exponential(1.0, REQUESTS)) / rate_per_s
    return Workload(arrival, prompt, output, np.zeros(REQUESTS, dtype=np.int64))


def attained(simulator: Simulator, workload: Workload, targets: Targets) -> tuple[float, float]:
    """The shares of requests within TTFT and TPOT, of the later half."""
    simulator.run_out()
    later = slice(REQUESTS // 2, None)
    first, done = np.array(simulator.first_s)[later], np.array(simulator.done_s)[later]
    tokens = np.maximum(1, workload.output_tokens[later] - 1)
    in_time = float(np.mean(first - workload.arrival_s[later] <= targets.ttft_s))
    return in_time, float(np.mean((done - first) / tokens <= targets.tpot_s))


def share_of(role: Role, worker: WorkerModel, workers: int, aim: Aim, rate_per_s: float) -> float:
    """The share of requests within the pool's own target, with the other pool free."""
    workload = draw(aim, rate_per_s)
    simulator = Simulator(
        worker, workload, ttft_s=aim.targets.ttft_s if role is Role.PREFILL else None, free=role.partner
    )
    for _ in range(workers):
        simulator.add(role, 0.0)
    return attained(simulator, workload, aim.targets)[POOL_ROLES.index(role)]


def carried_per_s(role: Role, worker: WorkerModel, degree: int, aim: Aim, wanted: float) -> float:
    """The load that eight accelerators carry with this share of requests in time; 0: none."""
    share = partial(share_of, role, worker, max(1, POOL_ACCELERATORS // degree), aim)
    low, high = 1e-3, 1e-3
    if share(low) < wanted:
        return 0.0
    while share(high) >= wanted and high < 1e4:
        low, high = high, high * 2
    while high / low > RESOLUTION:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if share(middle) >= wanted else (low, middle)
    return low


def sweep(subject: Subject, accelerator: Accelerator, aim: Aim) -> Row | None:
    """One cell; None: the model fits on no number of accelerators."""
    load = PlannedLoad(mean_mix(aim.prompt, aim.output), aim.targets, MAX_STEP_TOKENS, aim.prompt + aim.output)
    try:
        named = choose_degrees(subject.shape, accelerator, load, subject.degrees).degrees
    except ManifestError:
        return None
    workers: dict[int, WorkerModel] = {}
    for degree in subject.degrees:
        if subject.shape.admits(degree):
            try:
                workers[degree] = _worker(subject, accelerator, Degrees(degree, degree), aim)
            except ManifestError:
                continue
    costs: dict[Role, dict[int, float]] = {}
    rates: dict[Role, dict[int, float]] = {}
    for role in POOL_ROLES:
        alone = max(share_of(role, worker, 1, aim, 1e-3) for worker in workers.values())
        wanted = aim.targets.share(role) * alone
        rates[role] = {degree: carried_per_s(role, w, degree, aim, wanted) for degree, w in workers.items()}
        costs[role] = {
            degree: max(degree, POOL_ACCELERATORS) / rate if rate else inf for degree, rate in rates[role].items()
        }
    pairs = {Degrees(p, d): costs[Role.PREFILL][p] + costs[Role.DECODE][d] for p, d in product(workers, workers)}
    best = min(pairs, key=lambda pair: pairs[pair])
    regret = 1.0 if pairs[best] == inf else pairs[named] / pairs[best]
    return Row(
        subject.shape.name,
        accelerator.name,
        aim.name,
        named,
        best,
        regret,
        _together(_worker(subject, accelerator, named, aim), named, aim, rates),
    )


def _together(
    worker: WorkerModel, named: Degrees, aim: Aim, rates: dict[Role, dict[int, float]]
) -> tuple[float, float]:
    """What both pools of the named degrees attain together, sized for what the decode pool carries."""
    rate = rates[Role.DECODE][named.decode] or 1e-3
    of_eight = rates[Role.PREFILL][named.prefill] or rate
    workload = draw(aim, rate)
    simulator = Simulator(worker, workload, ttft_s=aim.targets.ttft_s)
    per_pool = [max(1, POOL_ACCELERATORS // degree) for degree in named]
    for role, count in zip(POOL_ROLES, (ceil(per_pool[0] * rate / of_eight), per_pool[1]), strict=True):
        for _ in range(count):
            simulator.add(role, 0.0)
    return attained(simulator, workload, aim.targets)


def _worker(subject: Subject, accelerator: Accelerator, degrees: Degrees, aim: Aim) -> WorkerModel:
    return worker_model(
        subject.shape,
        accelerator,
        degrees,
        max_step_tokens=MAX_STEP_TOKENS,
        context_tokens=aim.prompt + aim.output,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", choices=tuple(SPLITS), default="development")
    parser.add_argument("--accelerator", choices=("h200", "h100"), default="h200")
    options = parser.parse_args()
    accelerator = {"h200": H200, "h100": H100}[options.accelerator]
    print("model                accelerator  aim        named  best   regret  TTFT and TPOT kept together")
    regrets = []
    for subject in SPLITS[options.split]:
        for aim in AIMS:
            row = sweep(subject, accelerator, aim)
            if row is None:
                print(f"{subject.shape.name:<20} {accelerator.name:<12} {aim.name:<10} fits nowhere", flush=True)
                continue
            regrets.append(row.regret)
            named, best = (f"{pair.prefill}+{pair.decode}" for pair in (row.named, row.best))
            kept = ", ".join(f"{100 * share:.1f} %" for share in row.attained)
            cells = f"{row.model:<20} {row.accelerator:<12} {row.aim:<10} {named:<6} {best:<6} {row.regret:<7.3f}"
            print(f"{cells} {kept}", flush=True)
    print(f"worst regret {max(regrets):.3f}, {sum(regret <= 1.1 for regret in regrets)} of {len(regrets)} within 1.1")
    return 0 if max(regrets) <= 1.1 else 1


if __name__ == "__main__":
    sys.exit(main())
