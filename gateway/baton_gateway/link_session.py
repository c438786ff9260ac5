"""The HTTP client that dials internal links: as many as there are, each attempt over a connection of its own."""

from __future__ import annotations

import aiohttp


def link_session() -> aiohttp.ClientSession:
    """To be closed by the caller. What answered a bad upgrade is hung up on: the library would dial over it again."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))
