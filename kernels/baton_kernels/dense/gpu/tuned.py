"""Measured configurations: `measured/<gpu>.json`, `{"op": {"shape": [entry, …]}}`. A GPU without a file has none."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch


def tuned(device: int, op: str, shape: str) -> list[Any]:
    """The entries of a shape on this GPU, or none."""
    entries: list[Any] = _table(torch.cuda.get_device_name(device)).get(op, {}).get(shape, [])
    return entries


@cache
def _table(gpu: str) -> dict[str, dict[str, list[Any]]]:
    path = Path(__file__).parent / "measured" / f"{gpu.lower().replace(' ', '_')}.json"
    table: dict[str, dict[str, list[Any]]] = json.loads(path.read_text()) if path.exists() else {}
    return table
