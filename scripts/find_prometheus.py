"""Prints the folder with the programs `prometheus` and `promtool`: `python scripts/find_prometheus.py [--no-fetch]`.

They are those of the folder in BATON_PROMETHEUS, those on PATH, or those of Debian's package, which apt-get fetches and
dpkg unpacks into the cache without installing it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "baton" / "prometheus"
_DEADLINE_S = 300


def find(may_fetch: bool = True) -> Path | None:
    """The folder, or None where the programs are absent and cannot be fetched."""
    if named := os.environ.get("BATON_PROMETHEUS"):
        return Path(named)
    if (program := shutil.which("promtool")) is not None:
        return Path(program).parent
    folder = CACHE / "usr" / "bin"
    if (folder / "promtool").is_file():
        return folder
    if not may_fetch or shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return None
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as given:
        fetched = _runs(["apt-get", "download", "-qq", "prometheus"], given)
        packages = [str(path) for path in Path(given).glob("prometheus_*.deb")]
        is_there = fetched and bool(packages) and _runs(["dpkg", "-x", packages[0], str(CACHE)], given)
    return folder if is_there and (folder / "promtool").is_file() else None


def _runs(command: list[str], folder: str) -> bool:
    done = subprocess.run(command, check=False, cwd=folder, timeout=_DEADLINE_S, stdin=subprocess.DEVNULL)
    return done.returncode == 0


if __name__ == "__main__":
    found = find(may_fetch="--no-fetch" not in sys.argv[1:])
    if found is None:
        sys.exit("no promtool: apt-get cannot fetch Debian's package prometheus")
    print(found)
