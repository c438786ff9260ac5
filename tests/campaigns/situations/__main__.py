"""Starts one of ten situations of an on-call engineer, without naming its cause: `make campaign RUN="situations 4"`.

A real `baton up` of the tiny model serves a light load, and something is wrong with it. What is printed is what the
engineer knows: what clients complain of, and where to look. Find the cause with the page alone, then with `baton top`,
`baton explain` and `baton history` alone. `--answers` prints the causes of all situations, and starts none.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

from baton_testing.processes.baton_up import Up
from baton_testing.processes.prepared import service
from campaigns.situations.planted import SITUATIONS, Scene, Situation, written_manifest

SETTLE_S = 10.0
"""The load runs this long before something goes wrong."""


def print_scene(number: int, situation: Situation, scene: Scene) -> None:
    """Print what the engineer knows."""
    print(f"situation {number}: {situation.complaint}")
    print(f"page:      http://127.0.0.1:{scene.admin_port}/ui/")
    print(f"terminal:  XDG_RUNTIME_DIR={scene.up.runtime} python -m baton_local top|explain|history")
    print("ends with Ctrl-C", flush=True)


def play(number: int, seconds: float) -> None:
    """Start the situation, and keep it up until the time is over or somebody interrupts."""
    situation = SITUATIONS[number - 1]
    with tempfile.TemporaryDirectory(prefix="baton-situation-") as temporary, service() as prepared:
        folder = Path(temporary)
        with Up(folder, written_manifest(folder, situation), starts=prepared) as up:
            up.await_ready()
            ended = threading.Event()
            scene = Scene(up, ended)
            threads = [threading.Thread(target=scene.light_load, daemon=True)]
            threads[0].start()
            time.sleep(SETTLE_S)
            threads.append(threading.Thread(target=situation.plant, args=(scene,), daemon=True))
            threads[1].start()
            print_scene(number, situation, scene)
            try:
                ended.wait(seconds)
            except KeyboardInterrupt:
                pass
            ended.set()
            for thread in threads:
                thread.join(60.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("number", type=int, nargs="?", choices=range(1, len(SITUATIONS) + 1))
    parser.add_argument("--seconds", type=float, default=1_800.0, help="ends by itself (default %(default)s)")
    parser.add_argument("--answers", action="store_true", help="print the causes, and start nothing")
    arguments = parser.parse_args()
    if arguments.answers:
        for number, situation in enumerate(SITUATIONS, 1):
            print(f"{number}: {situation.cause}")
        return 0
    if arguments.number is None:
        parser.error("the number of a situation is missing")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    play(arguments.number, arguments.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
