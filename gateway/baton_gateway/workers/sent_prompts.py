"""The prompts that this process sent and whose workers have not yet announced that they hold them.

A prompt counts as cached where it was sent, until shortly after its first token: by then the worker has announced it,
or has not kept it. This is a guess, and covers nothing else. Plain bookkeeping; time is passed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from baton_wire.messages.values import PLACE_BYTES
from baton_wire.rules.prefix_digests import common_blocks, sparse_lengths

LINGER_S: Final = 1.0
"""From a prompt's first token, or its end, until its worker's announcement is sure to have come."""
MOST_PROMPTS: Final = 16_384
"""The oldest are forgotten beyond."""


@dataclass(slots=True, eq=False)
class _SentPrompt:
    names: bytes
    """Names of all its places, in order."""
    worker: bytes
    block_tokens: int
    is_settled: bool = False


@dataclass(slots=True)
class SentPrompts:
    """Sent prompts by run, and by their places of sparse lengths."""

    _runs: dict[bytes, tuple[_SentPrompt, ...]] = field(default_factory=dict)
    _latest: dict[bytes, dict[bytes, _SentPrompt]] = field(default_factory=dict)
    """Place → worker → the prompt that was sent there last."""
    _settled: deque[tuple[float, bytes, tuple[_SentPrompt, ...]]] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self._runs)

    def record(self, run: bytes, sent: Iterable[tuple[bytes, int, bytes]], now: float) -> None:
        """A run's prompt was sent: to each worker, with the size of its blocks and the names of its places in them."""
        self._expire(now)
        self._forget(run)
        prompts = tuple(_SentPrompt(names, worker, tokens) for worker, tokens, names in sent if names)
        self._runs[run] = prompts
        for prompt in prompts:
            for name in _sparse_names(prompt):
                self._latest.setdefault(name, {})[prompt.worker] = prompt
        while len(self._runs) > MOST_PROMPTS:
            self._forget(next(iter(self._runs)))

    def settle(self, run: bytes, now: float) -> None:
        """The run has its first token, or ended: its workers announce what they hold of it."""
        prompts = self._runs.get(run)
        if prompts and not prompts[0].is_settled:
            prompts[0].is_settled = True
            self._settled.append((now + LINGER_S, run, prompts))

    def longest(self, names: bytes, block_tokens: int, now: float) -> dict[bytes, int]:
        """The longest context, in blocks, that each worker was sent of a prompt with these places."""
        self._expire(now)
        lengths: dict[bytes, int] = {}
        if not self._latest:
            return lengths
        for blocks in sparse_lengths(len(names) // PLACE_BYTES, block_tokens):
            prompts = self._latest.get(names[(blocks - 1) * PLACE_BYTES : blocks * PLACE_BYTES], {})
            for worker, prompt in prompts.items():
                if worker not in lengths:
                    lengths[worker] = common_blocks(names, prompt.names, blocks)
        return lengths

    def _expire(self, now: float) -> None:
        while self._settled and self._settled[0][0] <= now:
            _, run, prompts = self._settled.popleft()
            if self._runs.get(run) is prompts:
                self._forget(run)

    def _forget(self, run: bytes) -> None:
        self._unlist(self._runs.pop(run, ()))

    def _unlist(self, prompts: Iterable[_SentPrompt]) -> None:
        for prompt in prompts:
            for name in _sparse_names(prompt):
                workers = self._latest.get(name, {})
                if workers.get(prompt.worker) is prompt:
                    del workers[prompt.worker]
                    if not workers:
                        del self._latest[name]


def _sparse_names(prompt: _SentPrompt) -> Iterable[bytes]:
    names = prompt.names
    lengths = sparse_lengths(len(names) // PLACE_BYTES, prompt.block_tokens)
    return (names[(blocks - 1) * PLACE_BYTES : blocks * PLACE_BYTES] for blocks in lengths)
