"""The open requests of a worker: the gateway link that owns each, and the choices that are still open.

Pure bookkeeping of the io thread: tokens and failures of the engine find their link here, and a lost link finds what
must be cancelled. A key belongs to the link that opened it first; no other link can cancel or shadow it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from baton_wire.messages.values import RequestKey

L = TypeVar("L", bound=Hashable)


class OpenRequests(Generic[L]):
    """Map of open requests to links `L`."""

    def __init__(self) -> None:
        self._links: dict[RequestKey, L] = {}
        self._choices: dict[RequestKey, set[int]] = {}
        self._traces: dict[RequestKey, bytes] = {}
        """Traces of the sampled ones."""

    def __len__(self) -> int:
        return len(self._links)

    def open(self, key: RequestKey, choices: tuple[int, ...], link: L, trace_id: bytes | None = None) -> bool:
        """Record a request; False (and nothing changes) when the key is already open."""
        if key in self._links:
            return False
        self._links[key] = link
        self._choices[key] = set(choices)
        if trace_id is not None:
            self._traces[key] = trace_id
        return True

    def link_of(self, key: RequestKey) -> L | None:
        return self._links.get(key)

    def trace_of(self, key: RequestKey) -> bytes | None:
        """Return the trace of a sampled request that is open. Safe from any thread."""
        return self._traces.get(key)

    def owns(self, key: RequestKey, link: L) -> bool:
        return self._links.get(key) == link

    def choice_ended(self, key: RequestKey, choice: int) -> bool:
        """Record that one choice is over. Returns True when it was the last one; the key is then closed."""
        choices = self._choices.get(key)
        if choices is None:
            return False
        choices.discard(choice)
        if choices:
            return False
        self.close(key)
        return True

    def rename(self, old: RequestKey, new: RequestKey) -> None:
        """Continue the open request `old` under the key `new`."""
        self._links[new] = self._links.pop(old)
        self._choices[new] = self._choices.pop(old)
        if old in self._traces:
            self._traces[new] = self._traces.pop(old)

    def close(self, key: RequestKey) -> L | None:
        """Forget the request; returns the link it belonged to."""
        self._choices.pop(key, None)
        self._traces.pop(key, None)
        return self._links.pop(key, None)

    def keys_of(self, link: L) -> list[RequestKey]:
        """Every open request of a link, in the order in which they were opened."""
        return [key for key, owner in self._links.items() if owner == link]
