"""The progress of a fetch, from the Event that the kubelet makes of its Pod's readiness probe. Pure.

The Job's Pod has no rights and no port, and the operator reads no logs.
"""

from __future__ import annotations

import re

PROGRESS_FILE = "/tmp/progress"
PROGRESS_S = 30
"""Seconds between two probes, and between two reads of their Events."""
_SAID = re.compile(r"\bfetched ([0-9]{1,18})(?: of ([0-9]{1,18}))? bytes\b")
_WORDS = re.compile(r": (?:[0-9]+ %|under 1 %|[0-9.]+ [KMGT]?i?B so far)(?: \([^)]*\))?")


def progress_words(message: str) -> str:
    """The progress as the end of a sentence: `: 20 % (12.3 of 60.5 GiB)`, or `: 12.3 GiB so far` without a known total.
    Empty if the Event has no progress."""
    match = _SAID.search(message)
    if match is None:
        return ""
    have, total = int(match.group(1)), int(match.group(2) or 0)
    if total <= 0:
        number, unit = _in_units(have, have)
        return f": {number} {unit} so far"
    number, unit = _in_units(have, total)
    most, _ = _in_units(total, total)
    percent = 100 * have // total
    return f": {f'{min(percent, 100)} %' if percent else 'under 1 %'} ({number} of {most} {unit})"


def without_progress(text: str) -> str:
    """A message without the numbers that change while a model is fetched."""
    return _WORDS.sub("", text)


def _in_units(size: int, like: int) -> tuple[str, str]:
    """A size in the unit that fits `like`."""
    power = max((exponent for exponent in range(5) if like >= 1 << (10 * exponent)), default=0)
    unit = ("B", "KiB", "MiB", "GiB", "TiB")[power]
    return (f"{size / (1 << (10 * power)):.1f}" if power else str(size)), unit
