"""Tensor parallelism on several GPUs of one machine: sums between ranks, and steps of whole models.

    python -m bench gpu_ranks exchange --ranks 2        # our sums, NCCL's and torch's, in graphs: µs of each
    python -m bench gpu_ranks steps Llama-3.1-8B --weights fp8 --ranks 2 --rows 1 32 --prompts 4096
    python -m bench gpu_ranks table                     # all lines so far, and greedy answers against one rank

The first GPUs of CUDA_VISIBLE_DEVICES are used, one a rank. Each figure is a line of JSON, and a line of the results
file. Models have random weights, the same for every number of ranks; `--device cpu` and `tiny` try the bench itself.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from bench.engine.ranked_steps import MODELS, Line, Subject, agreement, measure
from bench.machine import this_machine
from bench.results import FOLDER, Cell, table

from baton_engine.running.step_graphs import StepGraphs  # noqa: F401  (imports take seconds: not within a start)

RESULTS: Final = FOLDER / "gpu_ranks.jsonl"
TIMEOUT_S: Final = 240.0


def emitter(path: Path) -> Callable[[Line], None]:
    """Prints lines and appends them to the file; several benches may append side by side."""
    path.parent.mkdir(exist_ok=True, parents=True)

    def emit(line: Line) -> None:
        text = json.dumps({key: _rounded(value) for key, value in line.items()})
        print(text, flush=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")

    return emit


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    return [_rounded(entry) for entry in value] if isinstance(value, list) else value


def show(lines: Iterable[Line]) -> None:
    """Print the lines as tables, the sums by their best launch, and how far greedy answers agree with one rank's."""
    known = list(lines)
    best: dict[tuple[Any, ...], Line] = {}
    for line in known:
        if line["what"] == "exchange" and "us" in line:
            key = line["ranks"], line["bytes"], line["way"]
            best[key] = min(line, best.get(key, line), key=lambda entry: entry["us"])
    print(table(["ranks", "bytes", "way", "us", "least_us", "most_us", "exact", "launch"], list(best.values())))
    wrong = [line for line in known if line.get("exact") is False or "error" in line]
    print(f"{len(wrong)} sums are wrong or failed", *map(json.dumps, wrong), sep="\n")
    figures: list[dict[str, Cell]] = []
    whole = {
        (line["model"], line["weights"]): line["ids"] for line in known if _is(line, "answers") and line["ranks"] == 1
    }
    for line in (line for line in known if line["what"] != "exchange"):
        row = {key: line.get(key) for key in ("model", "weights", "ranks", "what", "rows", "tokens", "ms", "device_ms")}
        row |= {"mbu": _first(line, "mbu_by_rank"), "ready_s": line.get("ready_s"), "gib": _first(line, "gib_by_gpu")}
        if _is(line, "answers") and (ids := whole.get((line["model"], line["weights"]))) is not None:
            equal, of = agreement(ids, line["ids"])
            row["agree"] = f"{equal} of {of}"
        figures.append(row)
    columns = [
        "model",
        "weights",
        "ranks",
        "what",
        "rows",
        "tokens",
        "ms",
        "device_ms",
        "mbu",
        "ready_s",
        "gib",
        "agree",
    ]
    print(table(columns, figures))


def _is(line: Line, what: str) -> bool:
    return bool(line["what"] == what)


def _first(line: Line, key: str) -> Cell:
    return line[key][0] if line.get(key) else None


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parts = parser.add_subparsers(dest="part", required=True)
    exchange = parts.add_parser("exchange")
    exchange.add_argument("--ranks", type=int, default=2)
    exchange.add_argument("--sizes", type=int, nargs="+", help="bytes of the tensor at each rank")
    exchange.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    exchange.add_argument("--timeout", type=float, default=TIMEOUT_S, help="seconds")
    steps = parts.add_parser("steps")
    steps.add_argument("model", choices=MODELS)
    steps.add_argument("--weights", default="bf16")
    steps.add_argument("--ranks", type=int, default=1)
    steps.add_argument("--rows", type=int, nargs="*", default=[1, 32])
    steps.add_argument("--prompts", type=int, nargs="*", default=[4_096], help="tokens of each prompt")
    steps.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    steps.add_argument("--blocks", type=int, default=1_700)
    steps.add_argument("--slots", type=int, default=32)
    steps.add_argument("--steps", type=int, default=100, help="decode steps that are timed")
    steps.add_argument("--threads", type=int, default=1, help="compute threads of a rank on a CPU")
    steps.add_argument("--restarts", action="store_true", help="start again when all kernels are compiled")
    parts.add_parser("table")
    options = parser.parse_args(arguments)
    if options.part == "table":
        show([json.loads(text) for text in options.results.read_text(encoding="utf-8").splitlines()])
        return
    emit = emitter(options.results)
    print(this_machine(), flush=True)
    if options.part == "exchange":
        from bench.engine.rank_exchanges import SIZES, start  # needs Triton

        for line in start(options.ranks, options.sizes or SIZES, options.timeout, options.device):
            emit(line)
        return
    subject = Subject(
        *(options.model, options.weights, options.ranks, options.device),
        *(options.blocks, options.slots, options.threads),
    )
    measure(subject, options.rows, options.prompts, emit, steps=options.steps, restarts=options.restarts)


if __name__ == "__main__":
    main()
