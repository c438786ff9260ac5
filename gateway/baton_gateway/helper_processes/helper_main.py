"""A process apart's own side: answers what the gateway's side (`helper_process`) asks, until stdin ends.

A file of its own, since importing asyncio is half of what such a process takes to start.
"""

from __future__ import annotations

import resource
import signal
import sys
from collections.abc import Callable, Iterable

from baton_gateway.parent_death import die_with_parent


def answer_questions(answer: Callable[[bytes], Iterable[bytes]], max_memory_bytes: int) -> None:
    """Answer until stdin ends. Each part of an answer is sent before the next is asked for."""
    die_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # they are for the gateway, which still drains
        signal.signal(number, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = max_memory_bytes if hard == resource.RLIM_INFINITY else min(max_memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))  # more than the hard limit is not allowed, and would end it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    source, target = sys.stdin.buffer, sys.stdout.buffer
    while length := source.read(4):
        for body in answer(source.read(int.from_bytes(length))):
            target.write(len(body).to_bytes(4) + body)
            target.flush()
