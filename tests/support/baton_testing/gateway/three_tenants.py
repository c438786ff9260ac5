"""Three tenants of a gateway: a good one, a bad one, and one that may have a single sequence at work."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

GOOD, BAD, LIMITED = "good-tenant-key", "bad-tenant-key", "limited-tenant-key"
"""Their keys."""


def key_file(folder: Path) -> Path:
    """A file for `--api-keys`."""
    rows = [_row("good", GOOD), _row("bad", BAD), _row("limited", LIMITED) | {"max_running": 1, "max_queued": 64}]
    path = folder / "tenants.json"
    path.write_text(json.dumps({"tenants": rows}))
    return path


def _row(name: str, key: str) -> dict[str, object]:
    return {"name": name, "key_sha256": [hashlib.sha256(key.encode()).hexdigest()]}
