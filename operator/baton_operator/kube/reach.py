"""The namespaces that the operator can read now, kind by kind. A machine over the outcomes of lists: no clock, no
tasks.

A namespace is known when each kind in it has been listed and none is refused now. The deployments of another namespace
wait and say so, and nothing else waits for them. A refusal counts at once, whenever it comes. Any other failure counts
only until the first list, because a cache that is a little late does no harm.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from baton_operator.kube.kube_api import Forbidden, KubeError, Resource

Scope = str | None
"""A namespace, or None: all namespaces in one stream."""


@dataclass(slots=True)
class _Kind:
    is_optional: bool
    has_answered: bool = False
    """True once a list has succeeded or failed."""
    is_listed: bool = False
    refusal: str = ""
    failure: str = ""

    @property
    def is_known(self) -> bool:
        return self.is_optional if self.refusal else self.is_listed

    @property
    def problem(self) -> str:
        return "" if self.is_known else self.refusal or self.failure


class Reach:
    """The readable scopes and kinds, among those that `expect` announced."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[Scope], None]] = []
        """Functions that are called with a scope whose state has changed."""
        self._scopes: dict[Scope, dict[Resource, _Kind]] = {}
        self._settled = asyncio.Event()

    def expect(self, resource: Resource, scope: Scope, is_optional: bool = False) -> None:
        """Announce that a kind is going to be listed in a scope. An optional kind is left out where it is refused."""
        self._scopes.setdefault(scope, {}).setdefault(resource, _Kind(is_optional))
        self._settled.clear()

    def mark_listed(self, resource: Resource, scope: Scope) -> None:
        """Note that a list came: the kind can be read."""
        kind = self._scopes.get(scope, {}).get(resource)
        if kind is None or (kind.is_listed and not kind.refusal):
            return
        with self._reporting(scope):
            kind.has_answered, kind.is_listed, kind.refusal, kind.failure = True, True, "", ""

    def mark_allowed(self, resource: Resource, scope: Scope) -> None:
        """Note that a watch is allowed again: what it missed comes with it, or with the next list."""
        kind = self._scopes.get(scope, {}).get(resource)
        if kind is not None and kind.refusal:
            with self._reporting(scope):
                kind.refusal = ""

    def mark_failed(self, resource: Resource, scope: Scope, error: KubeError) -> None:
        """Note that a list or a watch failed."""
        kind = self._scopes.get(scope, {}).get(resource)
        if kind is None:
            return
        with self._reporting(scope):
            kind.has_answered = True
            if isinstance(error, Forbidden):
                kind.refusal = f"{resource.plural}: {error}"
            elif not kind.is_listed:
                kind.failure = f"{resource.plural}: {error}"

    def is_known(self, namespace: str) -> bool:
        """True if the deployments of a namespace can be worked on."""
        kinds = self._kinds(namespace)
        return bool(kinds) and all(kind.is_known for _, kind in kinds)

    def problem(self, namespace: str) -> str:
        """Why a namespace cannot be read; empty: it is known or has not answered yet."""
        return next((kind.problem for _, kind in self._kinds(namespace) if kind.problem), "")

    def left_out(self, namespace: str) -> frozenset[Resource]:
        """The optional kinds that may not be read in a namespace."""
        return frozenset(resource for resource, kind in self._kinds(namespace) if kind.is_optional and kind.refusal)

    def problems(self) -> Mapping[str, str]:
        """The namespaces that cannot be read, each with the reason; `*`: all namespaces, through one stream."""
        problems = {
            scope: next((kind.problem for kind in kinds.values() if kind.problem), "")
            for scope, kinds in self._scopes.items()
        }
        return {scope or "*": problem for scope, problem in problems.items() if problem}

    @property
    def is_blind(self) -> bool:
        """True if no namespace can be worked on."""
        return not any(all(kind.is_known for kind in kinds.values()) for kinds in self._scopes.values())

    async def settled(self) -> None:
        """Wait until every list has succeeded or failed once."""
        await self._settled.wait()

    def _kinds(self, namespace: str) -> list[tuple[Resource, _Kind]]:
        return [item for scope in (namespace, None) for item in self._scopes.get(scope, {}).items()]

    @contextlib.contextmanager
    def _reporting(self, scope: Scope) -> Iterator[None]:
        kinds = self._scopes[scope]
        before = [(kind.is_known, kind.problem) for kind in kinds.values()]
        was_known = all(known for known, _ in before)
        yield
        after = [(kind.is_known, kind.problem) for kind in kinds.values()]
        if not self._settled.is_set() and all(
            kind.has_answered for scope_kinds in self._scopes.values() for kind in scope_kinds.values()
        ):
            self._settled.set()
        is_known = all(known for known, _ in after)
        if is_known != was_known or [problem for _, problem in before] != [problem for _, problem in after]:
            for listener in self.listeners:
                listener(scope)
