"""Workers of a bench, each on the GPU that it is given, behind a fresh gateway or several for each load."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bench.results import Cell
from bench.serving.mixes import Point
from bench.serving.pools import shown_workers
from bench.serving.predicted_worker import StepTimes
from bench.serving.traced_worker import read_steps, step_figures

from baton_testing.processes.child_process import Child, get_text
from baton_testing.processes.deployment import Deployment, Shape, Worker

SAMPLE_S: Final = 0.2
GIB: Final = 1 << 30
STAGE: Final = re.compile(r'^baton_startup_seconds\{.*stage="([^"]+)".*\} (\S+)$', re.MULTILINE)
COMPILED: Final = re.compile(r"compiled here: (.+)$|kernel (\w+) was compiled while serving", re.MULTILINE)
FEW: Final = 4
SERIES: Final = re.compile(r"^(\w+)(\{[^}]*\})? (\S+)$", re.MULTILINE)


class PlacedWorkers(Deployment):
    """Each worker on the GPU that it is given; a point's gateway sees those that its mode uses."""

    def __init__(
        self,
        folder: Path,
        shape: Shape,
        gpu_of: Mapping[str, str],
        kv_gib: Mapping[str, int],
        *,
        traced: bool = False,
        gateways: int = 1,
    ) -> None:
        """`gpu_of`: each worker's GPU; `kv_gib`: its room for KV. `traced`: workers write down their steps."""
        super().__init__(folder, shape)
        self._gpu_of, self._kv_gib, self._traced = gpu_of, kv_gib, traced
        self._shown: frozenset[str] = frozenset(gpu_of)
        self.gateways = gateways
        """Gateways that `serve` starts; clients take them in turn."""
        self.urls: list[str] = []

    def launch(self, name: str, argv: Sequence[str], extra: Mapping[str, str] | None) -> Child:
        if name not in self._gpu_of:
            return super().launch(name, argv, extra)
        flags = (f"--kv-cache-bytes={self._kv_gib[name] * GIB}",) if name in self._kv_gib else ()
        if self._traced:
            argv = ["-m", "bench.serving.traced_worker", argv[1], str(self._trace_of(name)), *argv[2:]]
        return super().launch(name, [*argv, *flags], {**(extra or {}), "CUDA_VISIBLE_DEVICES": self._gpu_of[name]})

    def _trace_of(self, name: str) -> Path:
        return self.folder / f"{name}.steps"

    def publish(self) -> None:
        everybody = self.workers
        self.workers = [worker for worker in everybody if worker.child.name in self._shown]
        try:
            super().publish()
        finally:
            self.workers = everybody

    def serve(self, point: Point, flags: Sequence[str]) -> None:
        """Fresh gateways for this point, in front of the workers that its mode uses."""
        self.gateway.stop()
        self.stop_other_gateways()
        self._shown = shown_workers(point.mode, self._gpu_of)
        self.publish()
        target = (f"--disaggregation={point.mode}", f"--slo-tpot-s={point.tpot_ms / 1e3}")
        self.shape = replace(self.shape, gateway_flags=(*target, *flags))
        self._start_gateway()
        self.await_routable()
        others = [self.start_gateway(f"gateway-{n}", self.shape.gateway_flags) for n in range(1, self.gateways)]
        self.urls = [self.base_url, *others]

    @property
    def shown(self) -> list[Worker]:
        """Workers that the latest point uses: prefill workers first, each role by number."""
        workers = [worker for worker in self.workers if worker.child.name in self._shown]
        return sorted(workers, key=lambda worker: (worker.role != "prefill", worker.child.name))

    def traced_figures(self, since_s: float, until_s: float, times: StepTimes | None) -> dict[str, dict[str, Cell]]:
        """`step_figures` of each worker that the latest point uses; empty where nothing is traced."""
        if not self._traced:
            return {}
        names = [worker.child.name for worker in self.shown]
        return {name: step_figures(read_steps(self._trace_of(name)), since_s, until_s, times) for name in names}


def scrape_series(worker: Worker) -> dict[str, float]:
    """The worker's series, labels and all."""
    return {name + labels: float(value) for name, labels, value in SERIES.findall(worker.metrics())}


def increase(before: Mapping[str, float], after: Mapping[str, float], name: str) -> float:
    """The increase of all series of this name together."""
    return sum(value - before.get(key, 0.0) for key, value in after.items() if key.partition("{")[0] == name)


@contextmanager
def sample_states(workers: Mapping[str, Worker]) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """Samples of each worker's `/state`, taken until the context ends."""
    states: dict[str, list[dict[str, Any]]] = {name: [] for name in workers}
    over = threading.Event()

    def sample() -> None:
        while not over.wait(SAMPLE_S):
            for name, worker in workers.items():
                if (state := worker.state()) is not None:
                    states[name].append(state)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield states
    finally:
        over.set()
        thread.join()


def scrape_routes(service: PlacedWorkers) -> dict[str, Cell]:
    """The shares of this point's prompts computed at decode workers and of answers kept by prefill workers, by the
    gateways' own counts; empty if no admin port was given."""
    routes: dict[str, float] = {}
    for port in (service.admin_port, *service.other_admin_ports):
        page = "" if port is None else get_text(f"http://127.0.0.1:{port}/metrics")
        for name, labels, value in SERIES.findall(page):
            if name == "baton_gateway_routed_total":
                routes[labels] = routes.get(labels, 0.0) + float(value)
    whole = sum(routes.values())
    if not whole:
        return {}
    return {
        f"{kind} %": round(100 * sum(value for labels, value in routes.items() if kind in labels) / whole, 1)
        for kind in ("local", "kept")
    }


def transports(service: PlacedWorkers) -> str:
    """How KV travels between the shown workers, as they report it."""
    states = [worker.state() for worker in service.shown]
    used = {str(state["transfer"]["transport"]) for state in states if state and state["transfer"]["transport"]}
    return "+".join(sorted(used)) or "none"


def compiled_here(worker: Worker) -> str:
    """Kernels that this worker was the first to compile, by name if they are few."""
    compilations = COMPILED.findall(worker.child.output())
    named = sorted({kernel for before, later in compilations for kernel in (*before.split(", "), later) if kernel})
    return ", ".join(named) if len(named) <= FEW else f"{len(named)} kernels"


def startup_stages(worker: Worker) -> str:
    """Parts of its start in seconds."""
    stages = STAGE.findall(worker.metrics())
    return ", ".join(f"{stage} {float(seconds):.1f} s" for stage, seconds in stages)
