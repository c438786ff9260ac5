"""How many descriptors this process may have, and so how many connections."""

from __future__ import annotations

import resource

SPARE = 256
"""Links, discovery, children, files."""


def raise_descriptor_limit() -> int:
    """Raise the soft limit to the hard one, which needs no rights; the limit that then holds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # a sandbox may forbid what the kernel allows
            return soft
    return hard


def connection_cap(most: int, limit: int | None = None) -> int:
    """Connections that a listener may hold: `most`, unless the limit of descriptors allows fewer."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if limit is None else limit
    if limit == resource.RLIM_INFINITY:
        return most
    return max(1, min(most, max(limit - SPARE, limit // 2)))
