"""Chaos from seeds: `make campaign RUN="chaos processes …"` with real processes, `RUN="chaos simulated …"` on the
virtual clock. Each seed draws faults and the traffic of three tenants, and repeats them.
"""

from __future__ import annotations

import argparse
import importlib
import sys

HALVES = {
    "processes": "with real processes, in real time",
    "simulated": "on the virtual clock, with the same shells",
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    halves = parser.add_subparsers(dest="half", required=True)
    chosen = sys.argv[1] if len(sys.argv) > 1 and sys.argv[1] in HALVES else None
    for name, what in HALVES.items():
        half = halves.add_parser(name, help=what, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name == chosen:  # the other one need not be imported
            module = importlib.import_module(f"campaigns.chaos.{name}")
            half.description = module.__doc__
            module.add_arguments(half)
    arguments = parser.parse_args()
    return int(importlib.import_module(f"campaigns.chaos.{arguments.half}").run(arguments))


if __name__ == "__main__":
    sys.exit(main())
