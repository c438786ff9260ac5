"""What `baton bench` keeps of a run, as JSON: what was asked for, and a report for each rate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from baton_local.errors import StartError
from baton_local.load_test.load_report import LoadReport

FORMAT = 1


@dataclass(frozen=True, slots=True)
class LoadRecord:
    """A run. Times are seconds."""

    name: str
    """Of the server, in tables and plots."""
    model: str
    load: str
    """ArrivalKind and lengths, in words."""
    seeds: tuple[int, ...]
    share: float
    """Of the requests that have to be within the targets, for them to be kept."""
    gpus: int | None
    reports: tuple[LoadReport, ...]
    format: int = FORMAT


def as_json(record: LoadRecord) -> bytes:
    """Indented, with a line's end."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


def read_load_record(path: Path) -> LoadRecord:
    """Raises StartError for what is not one."""
    try:
        record = msgspec.json.decode(path.read_bytes(), type=LoadRecord)
    except msgspec.DecodeError as error:
        raise StartError(f"--beside: {path} was not written by `baton bench --json`: {error}") from error
    except OSError as error:
        raise StartError(f"--beside: {path} cannot be read: {error.strerror}") from error
    if record.format != FORMAT:
        raise StartError(f"--beside: {path} has format {record.format}; this program reads format {FORMAT}")
    return record
