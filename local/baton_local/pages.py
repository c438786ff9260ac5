"""Reads the state pages of processes over HTTP; a page that does not come is unknown."""

from __future__ import annotations

import http.client
import json
from urllib.parse import urlsplit

PAGE_S = 3.0
MAX_PAGE_BYTES = 16 << 20


def get_json(base: str, path: str) -> dict[str, object] | None:
    """A page that is a JSON object, or None."""
    parts = urlsplit(base)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=PAGE_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        value = json.loads(response.read(MAX_PAGE_BYTES)) if response.status == http.client.OK else None
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return value if isinstance(value, dict) else None
