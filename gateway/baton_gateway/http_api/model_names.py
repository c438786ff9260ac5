"""Names of models: those that workers serve, and aliases that only gateways know.

An alias is resolved once, when a request comes in. After that, in routing, waiting lines and metrics, a model has only
its served name. Answers repeat the name that the client wrote.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from baton_gateway.openai_api.openai_types import ChatRequest, CompletionRequest
from baton_gateway.workers.linked_workers import WorkerTable


class ModelNames:
    """Served names of the linked workers, and aliases."""

    def __init__(self, table: WorkerTable, aliases: Sequence[tuple[str, str]] = ()) -> None:
        """`aliases`: pairs of alias and served name. A name that a worker serves is never an alias."""
        self._table = table
        self._aliases = dict(aliases)

    def reconfigure(self, aliases: Sequence[tuple[str, str]]) -> None:
        """Use other aliases for requests that arrive from now on."""
        self._aliases = dict(aliases)

    def served(self, asked: str) -> str:
        """Return the served name for a name or an alias; an unknown name stays as it was asked."""
        name = self._aliases.get(asked)
        return asked if name is None or asked in self._table.served_names() else name

    def list_names(self) -> dict[str, str]:
        """Return all names of linked models with their served names; the served names come first."""
        served = self._table.served_names()
        known = {name: name for name in served}
        return known | {alias: name for alias, name in self._aliases.items() if name in known and alias not in known}

    def resolve(self, request: ChatRequest | CompletionRequest) -> ChatRequest | CompletionRequest:
        """Return the request with the served name of its model."""
        name = request.options.model
        served = self.served(name)
        if served == name:
            return request
        return msgspec.structs.replace(
            request, options=msgspec.structs.replace(request.options, model=served, alias=name)
        )
