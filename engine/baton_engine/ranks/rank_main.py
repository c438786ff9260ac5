"""`python -m baton_engine.ranks.rank_main`: one rank of a worker, started by the worker's process and by it alone.

Its arguments are numbers; what it loads and computes comes by its ring. It ends with its parent, however that ends.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when the thread that started it ends. Exit if its parent is gone already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)


def main(argv: Sequence[str]) -> int:
    flags = argparse.ArgumentParser(prog="baton-rank")
    for name in ("--rank", "--ranks", "--parent"):
        flags.add_argument(name, type=int, required=True)
    flags.add_argument("--descriptors", type=lambda text: [int(part) for part in text.split(",")], required=True)
    flags.add_argument("--stages", action="store_true")
    options = flags.parse_args(argv)
    end_with_parent(options.parent)
    from baton_engine.ranks.rank_ends import attach_all  # imports take seconds, the tie comes first
    from baton_engine.ranks.rank_loop import run_rank

    parts = attach_all(options.descriptors, options.ranks, are_stages=options.stages)
    return run_rank(options.rank, options.ranks, options.parent, parts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
