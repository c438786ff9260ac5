"""The door to all benches: `python -m bench --list`, `python -m bench NAME [ARGUMENTS]`.

Without a name those of this machine's CPU run one after another. Each prints a table and writes a file under
`bench/results/`. Each is also a module of its own, which needs `PYTHONPATH=tests/support` where it starts processes.
`bench.NAME` in prose means the module that `--list` shows after the name.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

BENCHES = {
    "engine_speed": (
        "bench.engine.speed",
        "the engine compared with `transformers`: prefill and decode tokens/s on one core",
    ),
    "engine_quantised": ("bench.engine.quantised", "one worker's engine on a CPU by weight format: tokens/s, memory"),
    "engine_encoding": (
        "bench.engine.encoding",
        "encoded prompts compared with prompts that draw a token: tokens/s, on the CPU or a GPU",
    ),
    "stages": (
        "bench.engine.stages",
        "a prefill worker's stages on a CPU, against one process: tokens/s of long prompts",
    ),
    "gateway_cost": ("bench.serving.gateway_cost", "the gateway: processor time per token, requests/s"),
    "telemetry_cost": (
        "bench.serving.telemetry_cost",
        "records and traces on against off: the gateway's processor time per token and request",
    ),
    "transfer": ("bench.transfer.transports", "the `tcp` transport compared with a plain socket: GB/s"),
    "rank_transfer": ("bench.transfer.ranks", "hand-overs between unequal numbers of ranks, and equal ones: ms"),
    "disaggregation": ("bench.serving.disaggregation", "prefill and decode apart and together: TTFT, TPOT, tokens/s"),
    "handover": ("bench.serving.handover", "what the hand-over costs a client: TTFT, the gap after the first token"),
    "overload": (
        "bench.serving.overload",
        "five times too much, and one huge request next to small ones: TTFT, refusals",
    ),
    "tenants_overload": (
        "bench.serving.tenants_overload",
        "many tenants at three times too much, and one at its worst, on virtual time: goodput, bytes, honest refusals",
    ),
    "many_tenants": (
        "bench.serving.many_tenants",
        "10,000 tenants: who may ask and what is left, memory, an edit of all of them",
    ),
    "goodput": ("bench.serving.goodput", "two GPUs under open load: what keeps TTFT and TPOT targets, by mode"),
    "goodput_beside": ("bench.serving.goodput_beside", "another server's replicas under the same loads and clients"),
    "goodput_plot": ("bench.serving.goodput_plot", "the plot of a `goodput` run, and where `auto` is not the envelope"),
    "goodput_predicted": ("bench.serving.goodput_predicted", "the same loads on a virtual clock, steps by parts"),
    "sessions_predicted": (
        "bench.serving.sessions_predicted",
        "sessions with long contexts on two GPUs, on a virtual clock: what keeps both targets, by mode",
    ),
    "gpu_sessions": (
        "bench.serving.gpu_sessions",
        "the same sessions on two GPUs, measured at the client: what keeps both targets, by mode",
    ),
    "gpu_ranked_fleets": (
        "bench.serving.ranked_fleets",
        "workers with several ranks on GPUs: hand-overs between degrees, ranks killed under load",
    ),
    "random_mixes": ("bench.serving.random_mixes", "the same on drawn mixes: `auto` against `always` and `never`"),
    "worker_start": ("bench.serving.worker_start", "until workers are ready, by which kernels are compiled already"),
    "offline": ("bench.serving.offline", "`baton batch`: tokens/s of whole sets, on the CPU or a GPU"),
    "structured_support": (
        "bench.structured.support",
        "what becomes of each keyword of JSON Schema: docs/structured.md",
    ),
    "structured_cost": (
        "bench.structured.cost",
        "what answers that follow a grammar cost: step times, on the CPU or a GPU",
    ),
    "structured_first_token": (
        "bench.structured.first_token",
        "how much later the first token comes with a schema, known or new",
    ),
    "structured_validity": ("bench.structured.validity", "answers of schemas judged by `jsonschema`, and continued"),
    "combinations": (
        "bench.combinations",
        "every pair of features each way of a request, equal or refused: docs/combinations.md",
    ),
    "kernels": ("bench.kernels.cpu", "the kernels' CPU paths compared with what they replace"),
    "sizing_fronts": ("bench.sizing.fronts", "policies over their knobs and fixed pools, on a split of loads"),
    "sizing_degrees": (
        "bench.sizing.degrees",
        "the degrees that `baton plan` names against the best of a sweep on the simulator",
    ),
    "sizing_decisions": (
        "bench.sizing.decisions",
        "processor time of mode SLO's decisions, on a split of loads",
    ),
    "sleeping": ("bench.sizing.sleeping", "quiet times before sleep: workers and late requests in money"),
    "paced": ("bench.sizing.paced", "a deployment that sizes itself, with emulated GPUs, under a trace"),
    "paced_fixed": (
        "bench.sizing.paced_fixed",
        "the simulator's latencies compared with those of real processes, pools fixed",
    ),
    "flipping": ("bench.sizing.flipping", "workers that change their role under load: seconds, lost requests"),
    "from_zero": ("bench.sizing.from_zero", "a flood of requests on a deployment that sleeps"),
    "gpu": ("bench.engine.gpu", "the engine and its kernels on one GPU, with the targets"),
    "gpu_ranks": (
        "bench.engine.gpu_ranks",
        "ranks with a GPU each: sums between them in µs, steps of whole models, greedy answers against one rank",
    ),
    "gpu_serving": (
        "bench.serving.gpu_serving",
        "serving on GPUs through gateway and workers: TTFT, TPOT, exact answers",
    ),
    "gpu_transfer": ("bench.transfer.gpu", "KV from one GPU into blocks of another through `ucx`"),
    "kv_precision": ("bench.engine.kv_precision", "what KV in float8 costs in quality, on a GPU"),
}
"""Name: module, what it measures."""
BY_DEFAULT = ("gateway_cost", "transfer", "disaggregation", "engine_speed")


def environment() -> dict[str, str]:
    """With the tests' support on the path, also for the processes that a bench starts."""
    paths = [str(ROOT), str(ROOT / "tests" / "support"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def listing() -> str:
    return "\n".join(f"{name:<15} {module:<29} {what}" for name, (module, what) in BENCHES.items())


def main(arguments: list[str]) -> int:
    if arguments[:1] in (["-h"], ["--help"]):
        print(f"{__doc__}\n{listing()}")
        return 0
    if arguments == ["--list"]:
        print(listing())
        return 0
    if arguments and arguments[0] not in BENCHES:
        print(f"bench: NAME: {arguments[0]!r} is not allowed: must be one of\n{listing()}", file=sys.stderr)
        return 2
    runs = [arguments] if arguments else [[name] for name in BY_DEFAULT]
    for name, *rest in runs:
        command = (sys.executable, "-m", BENCHES[name][0], *rest)
        if status := subprocess.run(command, env=environment(), check=False).returncode:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
