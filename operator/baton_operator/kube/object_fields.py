"""Reading objects that came over the network: what is not of the expected shape counts as absent."""

from __future__ import annotations

Manifest = dict[str, object]
"""One Kubernetes object, or a part of one, as JSON would hold it."""


def mapping(value: object) -> Manifest:
    return value if isinstance(value, dict) else {}


def mappings(value: object) -> tuple[Manifest, ...]:
    """The mappings of a list."""
    return tuple(item for item in value if isinstance(item, dict)) if isinstance(value, list) else ()


def text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def metadata_of(manifest: Manifest) -> Manifest:
    return mapping(manifest.get("metadata"))


def annotations_of(manifest: Manifest) -> Manifest:
    return mapping(metadata_of(manifest).get("annotations"))


def uid_of(manifest: Manifest) -> str:
    return str(metadata_of(manifest).get("uid", ""))


def is_leaving(manifest: Manifest) -> bool:
    """Deleted, and waiting for something."""
    return "deletionTimestamp" in metadata_of(manifest)


def is_controlled(manifest: Manifest, uid: str) -> bool:
    """Whether the object with that uid is its controlling owner."""
    references = mappings(metadata_of(manifest).get("ownerReferences"))
    return any(reference.get("uid") == uid and reference.get("controller") is True for reference in references)
