"""Traces in Mooncake's format as session loads: the hash ids of a prompt's blocks say what it shares with others.

The trace names no sessions. A request whose blocks continue all whole blocks of an earlier request belongs to the
session of that request, and waits for its answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Final

from baton_control.errors import FieldProblem, ManifestError
from baton_simulate.sessions.session_load import Segment, SessionLoad, SessionTurn
from baton_simulate.trace_files import BLOCK_TOKENS, MAX_ROWS, MAX_TOKENS

LEAST_BLOCKS: Final = 2
"""Fewer common blocks may be a system prompt; a session has more in common."""


def read_hash_trace(path: Path) -> SessionLoad:
    """The load of a file of JSON lines. Raises ManifestError, OSError, UnicodeDecodeError."""
    with path.open(encoding="utf-8") as file:
        return hash_trace(islice(file, MAX_ROWS), path.stem)


def hash_trace(lines: Iterable[str], name: str) -> SessionLoad:
    """The load of JSON lines, each with `timestamp` (ms), `input_length`, `output_length` and `hash_ids`."""
    rows = sorted((_row(number, line) for number, line in enumerate(lines, start=1)), key=lambda row: row[0])
    turns: list[SessionTurn] = []
    ends: dict[tuple[int, ...], int] = {}
    """Whole blocks of a prompt → the place of the latest one with them."""
    for at_s, prompt, output in rows:
        blocks = tuple(number for number, tokens in prompt if tokens == BLOCK_TOKENS)
        before = next((ends[part] for end in range(len(blocks), LEAST_BLOCKS - 1, -1)
                       if (part := blocks[:end]) in ends), None)  # fmt: skip
        session = len(turns) if before is None else turns[before].session
        after = () if before is None else (before,)
        turns.append(SessionTurn(session, prompt, output, after, at_s=at_s - rows[0][0]))
        if len(blocks) >= LEAST_BLOCKS:
            ends[blocks] = len(turns) - 1
    if not turns:
        raise _problem(1, "there is no request in this file")
    return SessionLoad(name, tuple(turns))


def _row(number: int, line: str) -> tuple[float, tuple[Segment, ...], int]:
    """(seconds, prompt, output tokens)"""
    try:
        row = json.loads(line)
        at_s, left, output = float(row["timestamp"]) / 1000.0, int(row["input_length"]), int(row["output_length"])
        ids = [int(block) for block in row["hash_ids"]]
    except (ValueError, KeyError, TypeError) as error:
        raise _problem(number, f"is not a Mooncake request with hash_ids ({error})") from error
    if not (1 <= left <= MAX_TOKENS and 0 <= output <= MAX_TOKENS and at_s >= 0.0):
        raise _problem(number, f"lengths {left} and {output} or time {at_s} s are out of bounds")
    if len(ids) != -(-left // BLOCK_TOKENS):
        raise _problem(number, f"has {len(ids)} hash_ids for {left} tokens; must have one for each {BLOCK_TOKENS}")
    sizes = [min(BLOCK_TOKENS, left - place * BLOCK_TOKENS) for place in range(len(ids))]
    return at_s, tuple(zip(ids, sizes, strict=True)), max(1, output)


def _problem(line: int, message: str) -> ManifestError:
    return ManifestError((FieldProblem(f"line {line}", message),))
