"""The memory by which the GPUs of several ranks exchange tensors: a region on each, mapped by all.

    region:  signals [PROGRAMS, MAX_RANKS] int32 | first half | second half | landing places [2, MAX_RANKS]
    half:    what the rank brought, SLOT_BYTES | sums of its part of it, SLOT_BYTES
    landing: what another rank pushed, LANDING_BYTES, of one of two turns; -1 where nothing has landed

Each call of an exchange is a turn. A rank writes what it brings into one half, signals every other rank, and reads the
others' halves when they have signalled. Turns take the halves alternately: a rank that writes into a half again has
seen a signal of the turn between from every other rank, so that all of them are done reading what the half held.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

PROGRAMS: Final = 128
"""Most programs of an exchange. A GPU that serves models has room for all of them at once."""
MAX_RANKS: Final = 8
SLOT_BYTES: Final = 16 << 20
SIGNAL_BYTES: Final = 4 * PROGRAMS * MAX_RANKS
LANDING_BYTES: Final = 256 << 10
LANDINGS_AT: Final = SIGNAL_BYTES + 4 * SLOT_BYTES
REGION_BYTES: Final = LANDINGS_AT + 2 * MAX_RANKS * LANDING_BYTES
STATE_WORDS: Final = PROGRAMS + 1
MOST_LOOKS: Final = 50_000_000
"""Looks for another rank's signal before it is given up: some 30 s, far longer than a rank may be without a sign of
life. A rank that shares its GPU looks only while it has it."""


@dataclass(frozen=True, slots=True)
class RankRegion:
    """One rank's view of all regions."""

    rank: int
    ranks: int
    addresses: Tensor
    """[ranks] int64 on the rank's device: where this rank has mapped each region."""
    state: Tensor
    """[STATE_WORDS] int32 on the rank's device: each program's turns, then whether a rank is lost. Zero at first."""
    most_looks: int = MOST_LOOKS


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type in which tensors of a dtype are added up."""
    return torch.float64 if dtype == torch.float64 else torch.float32
