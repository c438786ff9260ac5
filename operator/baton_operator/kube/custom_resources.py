"""What a process knows of LLMDeployments and LLMPools, and who is told when that changes.

One stream feeds it: kopf's in the operator, informers where an API server in memory stands for a real one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from baton_control.names import Key
from baton_operator.kube.cache import Cache
from baton_operator.kube.kinds import CUSTOM
from baton_operator.kube.kube_api import Resource


class CustomResources:
    """The caches of Baton's own kinds. Each of `listeners` is called with the LLMDeployment that a change concerns."""

    def __init__(self) -> None:
        self.caches: Mapping[Resource, Cache] = {each: Cache(each, self._changed) for each in CUSTOM}
        self.listeners: list[Callable[[Key], None]] = []
        self.synced = asyncio.Event()
        """Set by the stream when both caches hold their first list."""

    def _changed(self, key: Key) -> None:
        for listener in self.listeners:
            listener(key)
