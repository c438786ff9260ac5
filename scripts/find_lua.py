"""Prints the folder of a Lua 5.1 for Python, the one in a pinned wheel that pip fetches into a cache.

`python scripts/find_lua.py [--no-fetch]`. Argo CD runs health checks in a Lua 5.1; with this one the tests run Baton's.
The folder is a module path of its own, so that Baton's environment stays as it is.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PACKAGE = "lupa==2.8"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "baton" / PACKAGE.replace("==", "-")
_DEADLINE_S = 300


def find(may_fetch: bool = True) -> Path | None:
    """The folder, or None where the package is absent and cannot be fetched."""
    if (CACHE / "lupa" / "__init__.py").is_file():
        return CACHE
    if not may_fetch:
        return None
    command = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--only-binary=:all:", "--target"]
    done = subprocess.run([*command, str(CACHE), PACKAGE], check=False, timeout=_DEADLINE_S, stdin=subprocess.DEVNULL)
    return CACHE if done.returncode == 0 else None


if __name__ == "__main__":
    folder = find(may_fetch="--no-fetch" not in sys.argv[1:])
    if folder is None:
        sys.exit("no Lua: pip cannot fetch " + PACKAGE)
    print(folder)
