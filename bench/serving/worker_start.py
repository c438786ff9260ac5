"""How long one prefill and one decode worker take until both are ready, by what is compiled already.

    python -m bench worker_start --gpu h100 --out DIR

First a folder of kernels is filled, without the GPU. Then workers start: `cold` with nothing, `warm` with Triton's
cache of that start, `ahead` with the folder alone, and `ahead, warm` with the folder and the cache of the start before.
A worker is ready with its last stage; the whole answers once a gateway, started after both, has linked them. Each row
is written as it comes. On a CPU no kernel is compiled: a trial of the bench.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import cache_from_source
from pathlib import Path
from typing import Final

import torch
from bench.engine.gpu import LLAMA_8B
from bench.machine import this_machine
from bench.results import FOLDER, Cell, publish, write
from bench.serving.offline import model_folder
from bench.serving.placed_workers import SERIES, STAGE, compiled_here

from baton_kernels.ahead.described_gpu import GPUS
from baton_testing.processes.child_process import Child
from baton_testing.processes.deployment import Deployment, Shape
from baton_worker.config import KERNELS_VARIABLE

CONTEXT: Final = 20_480
CACHE: Final = "TRITON_CACHE_DIR"
STARTS: Final[Mapping[str, tuple[str, bool]]] = {
    "cold": ("a", False),
    "warm": ("a", False),
    "ahead": ("b", True),
    "ahead, warm": ("b", True),
}
"""Triton's cache, and whether workers get the folder."""
COLUMNS: Final = (
    *(
        "start",
        "worker",
        "answers s",
        "ready s",
        "imports",
        "device",
        "weights",
        "pool",
        "kernels",
        "graphs",
        "warm-up",
    ),
    *("hand-over", "fingerprint", "connecting", "found", "compiled", "which"),
)


class TwoWorkers(Deployment):
    """Each on a GPU of its own."""

    def launch(self, name: str, argv: Sequence[str], extra: Mapping[str, str] | None) -> Child:
        gpu = {"prefill-0": "0", "decode-0": str(max(0, torch.cuda.device_count() - 1))}.get(name)
        visible = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
        return super().launch(name, argv, {**(extra or {}), **visible})


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """For the processes that are started within."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def time_compiling(model: Path, gpu: str, kernels: Path, slots: int) -> float:
    """Seconds of `baton compile`."""
    sizes = (f"--max-sequences={slots}", f"--max-context-tokens={CONTEXT}")
    command = (sys.executable, "-m", "baton_worker.compile_ahead", str(model), f"--gpu={gpu}", f"--to={kernels}")
    began = time.monotonic()
    subprocess.run((*command, *sizes), check=True)
    return time.monotonic() - began


def measure_starts(name: str, folder: Path, shape: Shape) -> list[dict[str, Cell]]:
    """A row for each worker."""
    began = time.monotonic()
    rows: list[dict[str, Cell]] = []
    with TwoWorkers(folder, shape) as service:
        answers_s = time.monotonic() - began
        for worker in service.workers:
            page = worker.metrics()
            counts = {labels: float(value) for series, labels, value in SERIES.findall(page) if "kernels" in series}
            stages = {stage: float(seconds) for stage, seconds in STAGE.findall(page)}
            row: dict[str, Cell] = {"start": name, "worker": worker.child.name}
            row |= {"answers s": round(answers_s, 1), "ready s": round(sum(stages.values()), 1)}
            row |= {stage: round(seconds, 2) for stage, seconds in stages.items()}
            for origin in ("found", "compiled"):
                row[origin] = sum(value for labels, value in counts.items() if origin in labels)
            row["which"] = compiled_here(worker)
            rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", choices=tuple(GPUS), required=True, help="what this machine has")
    parser.add_argument("--out", type=Path, default=FOLDER, metavar="DIR")
    parser.add_argument("--max-sequences", type=int, default=256)
    parser.add_argument("--transport", choices=("tcp", "ucx"), default="ucx")
    parser.add_argument("--starts", nargs="+", choices=tuple(STARTS), default=list(STARTS))
    options = parser.parse_args()
    is_gpu = torch.cuda.is_available()
    flags = ("--dtype=bfloat16", "--device=cuda") if is_gpu else ("--dtype=float32", "--device=cpu")
    sizes = (f"--transport={options.transport}", f"--max-sequences={options.max_sequences}")
    rows: list[dict[str, Cell]] = []
    notes = [f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}" if is_gpu else "CPU: a trial of the bench"]
    if not Path(cache_from_source(torch.__file__)).is_file():
        notes.append("Python's modules are compiled with each start: they have no bytecode here")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model: str | Path = Shape().model
        if is_gpu:
            model = model_folder({**LLAMA_8B, "max_position_embeddings": CONTEXT}, folder)
            seconds = time_compiling(folder, options.gpu, folder / "kernels", options.max_sequences)
            notes.append(f"compiled ahead in {seconds:.1f} s on {len(os.sched_getaffinity(0))} cores")
            print(notes[-1], flush=True)
        shape = Shape(model=model, worker_flags=(*flags, *sizes), prefill_flags=("--keep-answers",))
        for name in options.starts:
            cache, is_told = STARTS[name]
            values = {CACHE: str(folder / cache), **({KERNELS_VARIABLE: str(folder / "kernels")} if is_told else {})}
            (folder / name).mkdir()
            with _environment(values):
                rows += measure_starts(name, folder / name, shape)
            print(*rows[-2:], sep="\n", flush=True)
            options.out.mkdir(parents=True, exist_ok=True)
            write(options.out / "worker_start.json", {"notes": notes, "rows": rows})
    publish("worker_start", this_machine(), notes, COLUMNS, rows)


if __name__ == "__main__":
    main()
