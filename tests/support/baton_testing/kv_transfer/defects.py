"""Defects of one hand-over's data, and the results of many spoilt hand-overs."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field

from baton_wire.messages.values import Reason


class Defect(enum.StrEnum):
    """A defect of one hand-over's data."""

    NONE = "none"
    FLIPPED = "one bit flipped in the landing region"
    TORN = "the tail of a write replaced by what lay there before"
    SWAPPED_UNITS = "two units of the stream swapped"
    SWAPPED_PIECES = "two pieces of one unit swapped"
    SWAPPED_WORDS = "two words of one piece swapped"
    STALE = "a former hand-over's bytes in place of this one's"
    EARLY_FREE = "the source block given to another request before it is sent"
    TRUNCATED = "the end of a write never comes"
    REPEATED = "an older write comes once more"
    SEALED_EARLY = "the Seal comes before the last write"
    SEAL_FLIPPED = "one bit of the Seal's checksums flipped"
    SEAL_SWAPPED = "two checksums of the Seal swapped"
    SEAL_SHORT = "one checksum missing in the Seal"
    SEAL_STALE = "the Seal carries another hand-over's checksums"
    SEAL_FOREIGN = "the Seal names another transfer"
    SEAL_CHOICES = "the Seal names another choice"


@dataclass(slots=True)
class Result:
    defect: Defect
    is_injected: bool
    """The defect changed something."""
    is_landed: bool
    is_exact: bool
    """True if the landed KV equals the computed KV."""
    reason: Reason | None


@dataclass(slots=True)
class Tally:
    """Results of many hand-overs: injected defects by kind, and how each kind ended."""

    handovers: int = 0
    injected: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    landed_wrong: int = 0
    landed_spoilt: int = 0
    """Landed exactly although the defect was in it: harmless, since nothing of it was used."""
    clean_lost: int = 0
    """Hand-overs without a defect that did not land."""

    def add(self, result: Result) -> None:
        self.handovers += 1
        if result.is_injected:
            self.injected[result.defect.name] += 1
            end = "landed" if result.is_landed else str(result.reason or "not admitted")
            self.ends[f"{result.defect.name}: {end}"] += 1
        elif not result.is_landed:
            self.clean_lost += 1
        self.landed_wrong += result.is_landed and not result.is_exact
        self.landed_spoilt += result.is_injected and result.is_landed and result.is_exact
