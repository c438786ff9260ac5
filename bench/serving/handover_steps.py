"""Where a hand-over's time goes, from the `step` lines of both workers' logs (`baton_kv_transfer.handover_steps`)."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Final

STEP: Final = re.compile(r"handover_steps step (\w+/\d+) (\d+\.\d+) (.*)$", re.MULTILINE)
ORIGIN: Final = "first token drawn"
NAMES: Final = {
    "opened": "asked for",
    "granted": "granted",
    "put done": "last PUT done",
    "seal sent": "sealed",
    "seal received": "seal at D",
    "landed": "scattered and verified",
    "second token drawn": "second token drawn",
}


def timeline(folder: Path, since_s: float) -> str:
    """Medians in milliseconds from the drawing of the first token, over hand-overs that were asked for after `since_s`.

    `since_s` is on CLOCK_MONOTONIC; `folder` has the logs of the workers, all of this machine.
    """
    found: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for path in folder.glob("*.log"):
        for key, at_s, step in STEP.findall(path.read_text(errors="replace")):
            found[key][step] = float(at_s)
    whole = [steps for steps in found.values() if ORIGIN in steps and steps.get("opened", 0.0) >= since_s]
    texts = []
    for step, name in NAMES.items():
        times = [1e3 * (steps[step] - steps[ORIGIN]) for steps in whole if step in steps]
        if times:
            texts.append(f"{name} {median(times):+.2f}")
    return f"{len(whole)} hand-overs, ms from the first token: {', '.join(texts)}"
