"""Medians with their spread, a table on the terminal, and the same numbers as JSON under `bench/results/`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.machine import Machine

FOLDER = Path(__file__).parent / "results"

Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and greatest of a few rounds."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{figure(self.median)} ({figure(self.low)}–{figure(self.high)})"


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile; `values` must not be empty."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(percent / 100 * len(ordered) + 0.5) - 1))]


def shrink_plot(path: Path) -> None:
    """Saves a plot again in 32 colours: a quarter of the bytes, and the repository keeps it."""
    from PIL import Image

    with Image.open(path) as image:
        small = image.convert("RGB").quantize(32, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def figure(value: float) -> str:
    """Three significant digits, no exponent."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table(columns: Sequence[str], rows: Sequence[Mapping[str, Cell]]) -> str:
    """A Markdown table of the named columns; a missing cell is shown as a dash."""

    def show(cell: Cell) -> str:
        return "–" if cell is None else figure(cell) if isinstance(cell, float) else str(cell)

    body = [[show(row.get(column)) for column in columns] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(columns, *body, strict=True)]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return "\n".join([line(columns), line(["-" * width for width in widths]), *map(line, body)])


def publish(
    name: str, machine: Machine, notes: Sequence[str], columns: Sequence[str], rows: Sequence[Mapping[str, Cell]]
) -> None:
    """Print the table and write `results/name.json`."""
    print(f"\n## {name}\n{machine}")
    print("\n".join(notes))
    print(table(columns, rows), flush=True)
    write(FOLDER / f"{name}.json", {"machine": machine.as_json(), "notes": list(notes), "rows": list(rows)})


def write(path: Path, record: Mapping[str, object]) -> None:
    """A record as JSON that people can read in a diff."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(as_text(record), encoding="utf-8")


def as_text(record: Mapping[str, object]) -> str:
    """JSON with a line for each entry of the record's lists and objects: a change shows as the rows that changed."""

    def line(held: object) -> str:
        return json.dumps(held, ensure_ascii=False)

    def value(held: object) -> str:
        if isinstance(held, list | tuple) and held:
            return "[\n  " + ",\n  ".join(map(line, held)) + "\n ]"
        if isinstance(held, dict) and held:
            return "{\n  " + ",\n  ".join(f"{line(key)}: {line(entry)}" for key, entry in held.items()) + "\n }"
        return line(held)

    return "{\n " + ",\n ".join(f"{line(key)}: {value(held)}" for key, held in record.items()) + "\n}\n"
