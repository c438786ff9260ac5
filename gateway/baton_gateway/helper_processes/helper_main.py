"""The helper process's own side: answers the questions of the gateway's side (`helper_process`) until stdin ends.

This is a separate file because importing asyncio would take half of the time that such a process needs to start.
"""

from __future__ import annotations

import resource
import signal
import sys
from collections.abc import Callable, Iterable

from baton_gateway.parent_death import die_with_parent


def answer_questions(answer: Callable[[bytes], Iterable[bytes]], max_memory_bytes: int) -> None:
    """Answer questions until stdin ends. Each part of an answer is sent before the next part is computed."""
    die_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # meant for the gateway, which still drains
        signal.signal(number, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = max_memory_bytes if hard == resource.RLIM_INFINITY else min(max_memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))  # raising the hard limit would fail
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    source, target = sys.stdin.buffer, sys.stdout.buffer
    while length := source.read(4):
        for body in answer(source.read(int.from_bytes(length))):
            target.write(len(body).to_bytes(4) + body)
            target.flush()
