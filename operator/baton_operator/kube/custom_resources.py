"""What a process knows of LLMDeployments and LLMPools, and who is told when that changes.

One stream feeds it: kopf's in the operator, informers where an API server in memory stands for a real one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from baton_control.names import Key
from baton_operator.kube.cache import Cache
from baton_operator.kube.kinds import CUSTOM
from baton_operator.kube.kube_api import Resource
from baton_operator.kube.reach import Reach, Scope


class CustomResources:
    """The caches of Baton's own kinds in `namespaces` (None: in all). `scopes`: what streams are made for; by default
    one for each namespace. Each of `listeners` is called with the LLMDeployment that a change concerns."""

    def __init__(self, namespaces: tuple[str, ...] | None, scopes: tuple[Scope, ...] | None = None) -> None:
        self.scopes = scopes if scopes is not None else namespaces or (None,)
        self.namespaces = None if namespaces is None else frozenset(namespaces)
        self.caches: Mapping[Resource, Cache] = {each: Cache(each, self._changed, self.namespaces) for each in CUSTOM}
        self.reach = Reach()
        for scope in self.scopes:
            for each in CUSTOM:
                self.reach.expect(each, scope)
        self.listeners: list[Callable[[Key], None]] = []

    def _changed(self, key: Key) -> None:
        for listener in self.listeners:
            listener(key)
