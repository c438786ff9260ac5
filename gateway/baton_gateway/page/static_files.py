"""The files of the page: HTML, styles and modules, served from the package as they are.

They have no data and no key, so everybody may have them. Their policy lets a browser load and run nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

PAGE: Final = "/ui/"
DATA: Final = "/ui/data.json"
PARTS: Final = "/ui/parts.json"
"""On the admin listener alone: the parts of all processes, for the page over several replicas."""
_TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_INDEX: Final = "index.html"
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
"""Headers of every answer below `/ui/`."""


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file of the page."""

    body: bytes
    content_type: str
    etag: str


def is_static(path: str) -> bool:
    """Return whether a path is one of the page's files, or the page without its last slash."""
    return path.startswith(PAGE[:-1]) and (path == PAGE[:-1] or path in static_files())


@cache
def static_files() -> Mapping[str, StaticFile]:
    """Return the files by path. They are read once, when the first one is asked for."""
    files: dict[str, StaticFile] = {}
    for entry in resources.files(__package__).joinpath("site").iterdir():
        suffix = entry.name[entry.name.rfind(".") :]
        if suffix not in _TYPES:
            continue
        body = entry.read_bytes()
        etag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
        files[PAGE + ("" if entry.name == _INDEX else entry.name)] = StaticFile(body, _TYPES[suffix], etag)
    return files
