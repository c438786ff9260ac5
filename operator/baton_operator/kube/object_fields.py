"""Readers of fields of objects that came over the network: a field of an unexpected shape counts as absent."""

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


def labels_of(manifest: Manifest) -> Manifest:
    return mapping(metadata_of(manifest).get("labels"))


def name_of(manifest: Manifest) -> str:
    return str(metadata_of(manifest).get("name", ""))


def uid_of(manifest: Manifest) -> str:
    return str(metadata_of(manifest).get("uid", ""))


def is_leaving(manifest: Manifest) -> bool:
    """True if the object is deleted and waits for its finalizers or dependants."""
    return "deletionTimestamp" in metadata_of(manifest)


def condition_of(status: Manifest, kind: str) -> Manifest:
    """A condition in the status of a live object; empty: it is not set."""
    conditions = mappings(status.get("conditions"))
    return next((condition for condition in conditions if condition.get("type") == kind), {})


def is_controlled(manifest: Manifest, uid: str) -> bool:
    """True if the object with that uid is the controlling owner."""
    references = mappings(metadata_of(manifest).get("ownerReferences"))
    return any(reference.get("uid") == uid and reference.get("controller") is True for reference in references)
