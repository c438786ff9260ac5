"""Reads request traces: Azure's CSV, Mooncake's JSON lines, and an own CSV. Bad rows are an error with their number."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path

from baton_control.errors import FieldProblem, ManifestError
from baton_control.sizing.inputs.request_shape import RequestShape
from baton_control.sizing.inputs.workload import Workload, workload_of

BLOCK_TOKENS = 512
"""Tokens of a block with one of Mooncake's hash ids."""
MAX_ROWS = 5_000_000
MAX_TOKENS = 1 << 21


def read_trace(path: Path) -> Workload:
    """A workload from a file, packed by gzip when its name ends in .gz; its first line tells the format.

    Raises ManifestError, OSError.
    """
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="") as file:
        first = file.readline()
        file.seek(0)
        if first.lstrip().startswith("{"):
            rows = list(_mooncake(islice(file, MAX_ROWS)))
        elif "ContextTokens" in first:
            rows = list(_azure(islice(file, MAX_ROWS)))
        elif "arrival_s" in first:
            rows = list(_own(islice(file, MAX_ROWS)))
        else:
            raise _problem(1, "is neither Azure CSV, Mooncake JSON lines nor arrival_s,prompt_tokens,output_tokens")
    if not rows:
        raise _problem(2, "there is no request in this file")
    rows.sort(key=lambda row: row[0])
    start = rows[0][0]
    return workload_of([at - start for at, _ in rows], [shape for _, shape in rows], path.stem)


def _azure(lines: Iterable[str]) -> Iterator[tuple[float, RequestShape]]:
    for number, row in enumerate(csv.DictReader(lines), start=2):
        try:
            at = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
            yield at, _shape(int(row["ContextTokens"]), int(row["GeneratedTokens"]), 0)
        except (ValueError, KeyError, TypeError) as error:
            raise _problem(number, f"is not TIMESTAMP,ContextTokens,GeneratedTokens ({error})") from error


def _mooncake(lines: Iterable[str]) -> Iterator[tuple[float, RequestShape]]:
    seen: set[int] = set()
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            ids = row.get("hash_ids", [])
            hits = 0
            while hits < len(ids) and ids[hits] in seen:
                hits += 1
            seen.update(ids)
            prompt = int(row["input_length"])
            cached = min(hits * BLOCK_TOKENS, max(0, prompt - 1))
            yield float(row["timestamp"]) / 1000.0, _shape(prompt, int(row["output_length"]), cached)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _problem(number, f"is not a Mooncake request ({error})") from error


def _own(lines: Iterable[str]) -> Iterator[tuple[float, RequestShape]]:
    for number, row in enumerate(csv.DictReader(lines), start=2):
        try:
            shape = _shape(int(row["prompt_tokens"]), int(row["output_tokens"]), int(row.get("cached_tokens") or 0))
            yield float(row["arrival_s"]), shape
        except (ValueError, KeyError, TypeError) as error:
            raise _problem(number, f"is not arrival_s,prompt_tokens,output_tokens[,cached_tokens] ({error})") from error


def _shape(prompt: int, output: int, cached: int) -> RequestShape:
    if not (1 <= prompt <= MAX_TOKENS and 0 <= output <= MAX_TOKENS and 0 <= cached <= prompt):
        raise ValueError(f"lengths {prompt}, {output}, {cached} are out of bounds")
    return RequestShape(prompt, max(1, output), cached)


def _problem(line: int, message: str) -> ManifestError:
    return ManifestError((FieldProblem(f"line {line}", message),))
