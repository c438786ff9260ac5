"""`python -m baton_model_fetch.progress FILE`: the progress of a fetch, for the readiness probe of its Pod.

The Pod has no rights, no port and no reader of its log. The kubelet reports what a failed probe prints as an Event, so
the probe fails with a sentence while the fetch goes on, and says nothing while nothing is known.
"""

from __future__ import annotations

import sys
from pathlib import Path

from baton_wire.whole_file import write_whole


def write(path: Path, have: int, total: int) -> None:
    """Write the progress file: `have` of `total` bytes. Raises OSError."""
    write_whole(path, f"{have} {total}".encode())


def sentence(text: str) -> str:
    """The probe's output for a progress file's text; empty for any other text.

    >>> sentence("3 40"), sentence("3 0"), sentence("")
    ('fetched 3 of 40 bytes', 'fetched 3 bytes', '')
    """
    parts = text.split()
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        return ""
    have, total = map(int, parts)
    return f"fetched {have} of {total} bytes" if total > 0 else f"fetched {have} bytes"


def main(arguments: list[str]) -> int:
    """Returns the exit status: 1 with a sentence, 0 where there is nothing to say."""
    try:
        output = sentence(Path(arguments[0]).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0
    print(output)
    return 1 if output else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
