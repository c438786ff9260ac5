"""`python -m baton_model_fetch.progress FILE`: how far a fetch is, as the readiness probe of its Pod says.

The Pod has no rights, no port and no reader of its log. What a failed probe prints is told by the kubelet as an Event,
so the probe fails with a sentence while the fetch goes on, and says nothing while nothing is known.
"""

from __future__ import annotations

import sys
from pathlib import Path

from baton_wire.whole_file import write_whole


def write(path: Path, have: int, total: int) -> None:
    """Note how many bytes are there, of how many. Raises OSError."""
    write_whole(path, f"{have} {total}".encode())


def sentence(text: str) -> str:
    """What the probe prints for a file's text; empty: the text says nothing."""
    parts = text.split()
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        return ""
    have, total = map(int, parts)
    return f"fetched {have} of {total} bytes" if total > 0 else f"fetched {have} bytes"


def main(arguments: list[str]) -> int:
    """Returns the exit status: 1 with a sentence, 0 where there is nothing to say."""
    try:
        said = sentence(Path(arguments[0]).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0
    print(said)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
