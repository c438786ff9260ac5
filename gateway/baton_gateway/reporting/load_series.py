"""A series of what requests of the last hour experienced, in slots of ten seconds: counts alone. Pure.

It is kept without anybody looking, because a page that opens after a bad quarter of an hour has to show it. That costs
some additions a request, and none a token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

SLOT_S = 10.0
MAX_SLOTS = 360


class LoadSlot(msgspec.Struct, array_like=True):
    """The counts of one slot."""

    number: int
    """The slot begins at `number * SLOT_S` on the machine's monotonic clock."""
    ttft_target_s: float | None = None
    """The target that the counts are judged by; None: there is none."""
    tpot_target_s: float | None = None
    first_tokens: int = 0
    """Requests that got their first token."""
    first_in_time: int = 0
    """First tokens within their target."""
    sequences: int = 0
    """Ended sequences of at least two tokens."""
    sequences_in_time: int = 0
    """Ended sequences whose mean gap between tokens is within its target."""
    finished: int = 0
    failed: int = 0
    refused: int = 0
    cancelled: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    running: int = 0
    """The most sequences that ran at one time."""
    waiting: int = 0
    """The most sequences that waited at one time."""


class LoadSeries:
    """The slots of the last hour, of this process. `now` is the event loop's clock, which only goes forward."""

    def __init__(self, ttft_s: float | None = None, tpot_s: float | None = None) -> None:
        self._slots: deque[LoadSlot] = deque(maxlen=MAX_SLOTS)
        self._targets = ttft_s, tpot_s

    def retarget(self, ttft_s: float | None, tpot_s: float | None) -> None:
        """Judge what comes from the next slot on by other targets."""
        self._targets = ttft_s, tpot_s

    def slots(self, now: float) -> list[LoadSlot]:
        """The slots of the last hour that have any counts, the oldest first."""
        oldest = int(now / SLOT_S) - MAX_SLOTS
        return [slot for slot in self._slots if slot.number > oldest]

    def count_first_token(self, seconds: float, now: float) -> None:
        """Count a first token that came after this long."""
        slot = self._slot(now)
        slot.first_tokens += 1
        slot.first_in_time += slot.ttft_target_s is None or seconds <= slot.ttft_target_s

    def count_sequence(self, gap_s: float, now: float) -> None:
        """Count an ended sequence with this mean gap between its tokens."""
        slot = self._slot(now)
        slot.sequences += 1
        slot.sequences_in_time += slot.tpot_target_s is None or gap_s <= slot.tpot_target_s

    def count_end(self, outcome: str, prompt_tokens: int, completion_tokens: int, now: float) -> None:
        """Count an ended request. `outcome`: finished, failed, refused or cancelled."""
        slot = self._slot(now)
        setattr(slot, outcome, getattr(slot, outcome) + 1)
        slot.prompt_tokens += prompt_tokens
        slot.completion_tokens += completion_tokens

    def sample(self, running: int, waiting: int, now: float) -> None:
        """Note how many sequences run and wait now."""
        if running or waiting:
            slot = self._slot(now)
            slot.running, slot.waiting = max(slot.running, running), max(slot.waiting, waiting)

    def _slot(self, now: float) -> LoadSlot:
        number = int(now / SLOT_S)
        if not self._slots or self._slots[-1].number < number:
            self._slots.append(LoadSlot(number, *self._targets))
        return self._slots[-1]


def merge_slots(series: Iterable[Iterable[LoadSlot]]) -> list[LoadSlot]:
    """Add the slots of several processes of one machine, whose clock is one."""
    merged: dict[int, LoadSlot] = {}
    for slots in series:
        for slot in slots:
            if (former := merged.get(slot.number)) is None:
                merged[slot.number] = msgspec.structs.replace(slot)
                continue
            for name in LoadSlot.__struct_fields__[3:]:
                setattr(former, name, getattr(former, name) + getattr(slot, name))
    return [merged[number] for number in sorted(merged)][-MAX_SLOTS:]
