"""The caches of Baton's own kinds, and the listeners for their changes.

One stream feeds them: kopf's in the operator, informers in tests with an API server in memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from baton_control.names import Key
from baton_operator.kube.cache import Cache
from baton_operator.kube.kinds import CUSTOM, DEPLOYMENTS, POOLS
from baton_operator.kube.kube_api import Resource
from baton_operator.kube.object_fields import Manifest, mapping
from baton_operator.kube.reach import Reach, Scope

_CLASS = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def is_class(given: object) -> bool:
    """True if `given` can name a class of operators. The operator without a class refuses other values."""
    return isinstance(given, str) and _CLASS.fullmatch(given) is not None


class CustomResources:
    """The caches of LLMDeployments and LLMPools in `namespaces` (None: in all). `scopes`: the streams that feed them,
    by default one for each namespace. LLMDeployments of another `operator_class` count as absent. Each of `listeners`
    is called with the LLMDeployment that a change concerns."""

    def __init__(
        self,
        namespaces: tuple[str, ...] | None,
        scopes: tuple[Scope, ...] | None = None,
        operator_class: str | None = None,
    ) -> None:
        self.scopes = scopes if scopes is not None else namespaces or (None,)
        self.namespaces = None if namespaces is None else frozenset(namespaces)

        def is_of_class(manifest: Manifest) -> bool:
            given = mapping(manifest.get("spec")).get("operatorClass")
            return given == operator_class or (operator_class is None and not is_class(given))

        self.caches: Mapping[Resource, Cache] = {
            DEPLOYMENTS: Cache(DEPLOYMENTS, self._changed, self.namespaces, is_of_class),
            POOLS: Cache(POOLS, self._changed, self.namespaces),
        }
        self.reach = Reach()
        for scope in self.scopes:
            for kind in CUSTOM:
                self.reach.expect(kind, scope)
        self.listeners: list[Callable[[Key], None]] = []

    def _changed(self, key: Key) -> None:
        for listener in self.listeners:
            listener(key)
