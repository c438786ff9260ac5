"""The session that a request belongs to, where its client names one: a hint that tells equal workers apart.

Nothing is kept of a session and no label is made of it: its name is hashed with the tenant's. Routing works without.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

SESSION_HEADERS: Final = (
    "X-Session-Id",
    "X-Claude-Code-Session-Id",
    "Session-Id",
    "Session_id",
    "Conversation_id",
    "X-Session-Affinity",
)
"""Headers in which clients and agents name a session; the first that is there counts."""


def session_number(headers: Mapping[str, str], cache_key: str, tenant: str) -> int | None:
    """A number of 64 bits of the session; None: the client names none. `cache_key`: the body's `prompt_cache_key`."""
    name = next((headers[header] for header in SESSION_HEADERS if headers.get(header)), cache_key)
    if not name:
        return None
    text = f"{tenant}\0{name}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
