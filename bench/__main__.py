"""Benchmarks of the CPU path, one after another: `python -m bench`, or only those named: `python -m bench engine`.

Each also runs alone, with options of its own: `python -m bench.engine.speed --help`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from bench.engine import speed as engine_speed
from bench.serving import disaggregation, gateway_cost
from bench.transfer import transports as transfer

BENCHMARKS: dict[str, Callable[[], None]] = {
    "gateway": gateway_cost.run,
    "transfer": lambda: transfer.run(None),
    "disaggregation": lambda: disaggregation.run(("tiny", "100m"), disaggregation.ROUNDS),
    "engine": lambda: engine_speed.run(("tiny", "100m"), engine_speed.ROUNDS, threads=1),
}
"""`engine` comes last: it pins this process to one core."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; default: all")
    asked = parser.parse_args().names or list(BENCHMARKS)
    if unknown := set(asked) - set(BENCHMARKS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    for name, run in BENCHMARKS.items():
        if name in asked:
            run()


if __name__ == "__main__":
    main()
