"""The owners of an object's fields, as its `managedFields` name them. Pure.

The fields that an object is created with belong to an *update* of its creator. An apply removes only fields that an
earlier *apply* of the same manager set, so a field of the create would stay for ever. So before its first apply the
operator turns the fields of its create into fields of an apply. `kubectl apply --server-side` does the same for objects
of older clients (k8s.io/client-go/util/csaupgrade).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from baton_operator.kube.object_fields import Manifest, mapping, mappings, metadata_of

_APPLY, _UPDATE = "Apply", "Update"


def is_created_by(manifest: Manifest, manager: str) -> bool:
    """True if the manager's create or update owns fields of the object; fields of subresources do not count."""
    return any(_is(entry, manager, _UPDATE) for entry in mappings(metadata_of(manifest).get("managedFields")))


def as_applied(managed_fields: object, manager: str) -> list[Manifest]:
    """The entries of `managedFields`, with the fields of the manager's update given to its apply."""
    entries = mappings(managed_fields)
    mine = [entry for entry in entries if _is(entry, manager, _APPLY) or _is(entry, manager, _UPDATE)]
    others = [entry for entry in entries if entry not in mine]
    if not mine:
        return others
    fields = _union(mapping(entry.get("fieldsV1")) for entry in mine)
    return [*others, {**mine[-1], "operation": _APPLY, "fieldsV1": fields}]


def _is(entry: Manifest, manager: str, operation: str) -> bool:
    return entry.get("manager") == manager and entry.get("operation") == operation and not entry.get("subresource")


def _union(trees: Iterable[Mapping[str, object]]) -> Manifest:
    union: Manifest = {}
    for tree in trees:
        for step, below in tree.items():
            union[step] = _union((mapping(union.get(step)), mapping(below)))
    return union
