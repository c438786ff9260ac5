"""Which calls of a chat have their results: each has one, right behind the turn that called."""

from __future__ import annotations

from baton_gateway.errors import RefusedError, invalid

_SHOWN_CHARS = 64


class ToolResults:
    """Follows a chat from its first message to its last."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        """Tools of all calls so far, by the call's id. A later turn may use an id again: some models count from 0 in
        each."""
        self._waiting: dict[str, str] = {}
        """The last turn's calls without a result: by id, where they stand."""
        self._answered: set[str] = set()
        """Ids of its other calls."""

    def call(self, call_id: str, name: str, path: str) -> None:
        """The assistant calls a tool. `path`: of the id. Raises RefusedError if another call of this turn has it."""
        if call_id in self._waiting:
            raise _refused(path, call_id, "is the id of two calls of one turn; each needs its own")
        self._names[call_id] = name
        self._waiting[call_id] = path

    def answer(self, call_id: str, path: str) -> str:
        """A tool's result; gives back the tool's name. `path`: of the id. Raises RefusedError if no call of the last
        turn waits for it."""
        if self._waiting.pop(call_id, None) is not None:
            self._answered.add(call_id)
            return self._names[call_id]
        if call_id in self._answered:
            raise _refused(path, call_id, "has a result already; each call has one")
        if call_id in self._names:
            raise _refused(path, call_id, "is an earlier turn's call; its result stands right behind that turn")
        raise _refused(path, call_id, "is the id of no call in an assistant's message before")

    def end_turn(self) -> None:
        """Another message than a tool's comes, or none. Raises RefusedError for a call without a result."""
        if self._waiting:
            call_id, path = next(iter(self._waiting.items()))
            more = f" (nor have {len(self._waiting) - 1} more)" if len(self._waiting) > 1 else ""
            rule = "each call needs one, right behind the turn that called"
            raise _refused(path, call_id, f"has no result{more}; {rule}")
        self._answered.clear()


def _refused(path: str, call_id: str, what: str) -> RefusedError:
    return invalid(path, f"'{path}': {call_id[:_SHOWN_CHARS]!r} {what}.")
