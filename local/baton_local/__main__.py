"""`baton`: dispatches a command and turns every expected error into one line and an exit status.

0: done · 1: it failed while running · 2: what was asked cannot be done as asked.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from baton_local.errors import LocalError
from baton_local.options import parse_options
from baton_local.up import UpOptions, run_up
from baton_operator.errors import ManifestError, OperatorError

REFUSED = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    options = parse_options(sys.argv[1:] if arguments is None else arguments)
    commands: dict[str, Callable[[argparse.Namespace], int]] = {"up": _up}
    try:
        return commands[options.command](options)
    except ManifestError as error:
        for problem in error.problems:
            print(f"baton: {problem}", file=sys.stderr)
    except (LocalError, OperatorError) as error:
        print(f"baton: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    return REFUSED


def _up(options: argparse.Namespace) -> int:
    return run_up(_up_options(options))


def _up_options(options: argparse.Namespace) -> UpOptions:
    up = UpOptions(
        manifest=options.file,
        host=options.host,
        port=options.port,
        volumes=dict(options.volume),
        device=options.device,
        processes=options.processes,
    )
    return replace(up, patience=replace(up.patience, first_ready_s=options.ready_timeout))


if __name__ == "__main__":
    sys.exit(main())
