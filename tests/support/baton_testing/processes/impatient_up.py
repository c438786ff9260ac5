"""`baton up` with short limits, on a machine whose troubles a test can switch on and off.

    python -m baton_testing.processes.impatient_up TROUBLES up -f FILE --port 0

While TROUBLES/full exists nothing can be written to the run directory by `up`; while TROUBLES/tired exists no process
can be started.
"""

from __future__ import annotations

import errno
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from baton_local.commands import up
from baton_local.fleet.supervision import Patience
from baton_local.options import parse_options
from baton_wire import whole_file

PATIENCE = Patience(start_s=60.0, silent_s=4.0, live_poll_s=0.2, live_answer_s=2.0, backoff_s=0.2, max_backoff_s=0.5)
"""Long enough for a fake process on a machine with other work: one that is killed for its slowness fails the test."""
FULL, TIRED = "full", "tired"


def main() -> int:
    """Run until a signal, as the command line would."""
    troubles = Path(sys.argv[1])
    whole_write, whole_init = whole_file.write_all, subprocess.Popen.__init__

    def write(path: Path, content: bytes, mode: int = 0o666) -> None:
        if (troubles / FULL).exists():
            path.write_bytes(content[:10])
            raise OSError(errno.ENOSPC, "full")
        whole_write(path, content, mode)

    def start(self: Any, *arguments: Any, **fields: Any) -> None:
        if (troubles / TIRED).exists():
            raise BlockingIOError(errno.EAGAIN, "tired")
        whole_init(self, *arguments, **fields)

    options = parse_options(sys.argv[2:])
    whole_file.write_all = write
    subprocess.Popen.__init__ = start  # type: ignore[method-assign]
    asked = up.UpOptions(manifest=options.file, port=options.port)
    return up.run_up(replace(asked, patience=PATIENCE))


if __name__ == "__main__":
    sys.exit(main())
