"""The LLMTenants of all namespaces as the server last sent them, without what no pass reads."""

from __future__ import annotations

from collections.abc import Callable

from baton_operator.kube.kinds import TENANTS
from baton_operator.kube.kube_api import Change, Listing, WatchEvent
from baton_operator.kube.object_fields import Manifest, metadata_of, name_of, uid_of


class TenantStore:
    """The LLMTenants of all namespaces, fed by an informer. `on_change` is called with the namespace of a change."""

    resource = TENANTS

    def __init__(self, on_change: Callable[[str], None]) -> None:
        self._on_change = on_change
        self._by_namespace: dict[str, dict[str, Manifest]] = {}

    def of(self, namespace: str) -> list[Manifest]:
        """The LLMTenants of a namespace."""
        return list(self._by_namespace.get(namespace, {}).values())

    def apply_list(self, listing: Listing, namespace: str | None) -> None:
        """Apply a whole list of a namespace (None: of all)."""
        listed: dict[str, dict[str, Manifest]] = {}
        for manifest in listing.items:
            listed.setdefault(namespace_of(manifest), {})[name_of(manifest)] = _kept(manifest)
        for place in {*listed, *self._by_namespace}:
            if namespace in (None, place) and listed.get(place, {}) != self._by_namespace.get(place, {}):
                self._set(place, listed.get(place, {}))

    def apply_event(self, event: WatchEvent) -> None:
        """Apply an event of a watch."""
        if event.change is Change.BOOKMARK:
            return
        place, name = namespace_of(event.object), name_of(event.object)
        tenants = dict(self._by_namespace.get(place, {}))
        if event.change is Change.DELETED:
            tenants.pop(name, None)
        else:
            tenants[name] = _kept(event.object)
        self._set(place, tenants)

    def store(self, manifest: Manifest) -> None:
        """Keep the answer to a write of a status."""
        tenants = self._by_namespace.get(namespace_of(manifest), {})
        if name_of(manifest) in tenants:
            tenants[name_of(manifest)] = _kept(manifest)

    def _set(self, namespace: str, tenants: dict[str, Manifest]) -> None:
        former = self._by_namespace.pop(namespace, {})
        if tenants:
            self._by_namespace[namespace] = tenants
        if {name: _wanted(manifest) for name, manifest in former.items()} != {
            name: _wanted(manifest) for name, manifest in tenants.items()
        }:
            self._on_change(namespace)


def namespace_of(manifest: Manifest) -> str:
    """The namespace of an object."""
    return str(metadata_of(manifest).get("namespace", ""))


def _wanted(manifest: Manifest) -> object:
    return manifest.get("spec"), uid_of(manifest)


def _kept(manifest: Manifest) -> Manifest:
    names = ("name", "namespace", "uid", "generation", "creationTimestamp")
    given = metadata_of(manifest)
    metadata = {name: given[name] for name in names if name in given}
    return {**{key: value for key, value in manifest.items() if key != "metadata"}, "metadata": metadata}
