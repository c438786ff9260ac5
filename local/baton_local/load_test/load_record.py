"""The record of a `baton bench` run as JSON: its load, and a report for each rate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from baton_local.errors import StartError
from baton_local.load_test.load_report import LoadReport

FORMAT = 1


@dataclass(frozen=True, slots=True)
class LoadRecord:
    """A run of `baton bench`. Times are seconds."""

    name: str
    """Name of the server in tables and plots."""
    model: str
    load: str
    """Arrivals and lengths, in words."""
    seeds: tuple[int, ...]
    share: float
    """Share of the requests that have to be within the targets."""
    gpus: int | None
    reports: tuple[LoadReport, ...]
    format: int = FORMAT


def as_json(record: LoadRecord) -> bytes:
    """The record as indented JSON, with a line end."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


def read_load_record(path: Path) -> LoadRecord:
    """Read a record. Raises StartError for any other file."""
    try:
        record = msgspec.json.decode(path.read_bytes(), type=LoadRecord)
    except msgspec.DecodeError as error:
        raise StartError(f"--beside: {path} was not written by `baton bench --json`: {error}") from error
    except OSError as error:
        raise StartError(f"--beside: {path} cannot be read: {error.strerror}") from error
    if record.format != FORMAT:
        raise StartError(f"--beside: {path} has format {record.format}; this program reads format {FORMAT}")
    return record
