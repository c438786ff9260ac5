"""`baton up` whose pools have the sizes that a test writes into a file, in place of a decision.

    python -m baton_testing.processes.scripted_up SIZES up -f FILE --port 0

SIZES holds two numbers, prefill and decode workers. Other numbers count once the gateway has reported all workers that
run: one that it does not know yet would be stopped and not flipped.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from baton_control.sizing.decision.scaling import Sized
from baton_local.commands import up
from baton_local.fleet.desired_processes import Routable, SlotSpec
from baton_local.fleet.pool_scaling import Scaling
from baton_local.options import parse_options
from baton_wire.messages.values import POOL_ROLES


def main() -> int:
    """Run until a signal, as the command line would."""
    sizes = Path(sys.argv[1])
    present = _read(sizes)

    def size(self: Scaling, running: Iterable[SlotSpec], routable: Routable | None) -> Sized:
        nonlocal present
        if routable is not None and sum(routable.values()) == len(tuple(running)):
            present = _read(sizes)
        workers = dict(zip(POOL_ROLES, present, strict=True))
        return Sized(workers, {role: f"{role.value} {count}: as written" for role, count in workers.items()}, False)

    Scaling.size = size  # type: ignore[method-assign]
    options = parse_options(sys.argv[2:])
    return up.run_up(up.UpOptions(manifest=options.file, port=options.port, emulate=options.emulate))


def _read(path: Path) -> tuple[int, ...]:
    return tuple(map(int, path.read_text().split()))


def write(path: Path, prefill: int, decode: int) -> None:
    """Ask for these sizes."""
    draft = path.with_suffix(".draft")
    draft.write_text(f"{prefill} {decode}")
    draft.replace(path)


if __name__ == "__main__":
    sys.exit(main())
