"""`python -m`: makes an agent as workers do, has a child that ends and gets a SIGHUP, then prints what came of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

from baton_kv_transfer.transports.ucx.binding import UcxAgent


def main() -> None:
    hangups: list[int] = []
    signal.signal(signal.SIGHUP, lambda number, frame: hangups.append(number))
    agent = UcxAgent(f"attacked-{uuid.uuid4().hex}", progress=True)
    subprocess.run([sys.executable, "-c", ""], check=True)
    os.kill(os.getpid(), signal.SIGHUP)
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libuc" in line}
    print(json.dumps({"mapped": sorted(mapped), "hangups": len(hangups), "metadata": len(agent.metadata())}))


if __name__ == "__main__":
    main()
