"""`baton up` whose workers and gateway need not import anything: forks of what it has imported itself.

    python -m baton_testing.processes.forked_posts baton_local up -f FILE --port 0

The first argument is the module that is `baton`.

A nursery is forked at the very start, before there is a loop or a thread, and forks every post. A post is orphaned at
once, so that the kernel gives it to `up`: it is a child of `up` in a session of its own, like one that was started.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baton_local.fleet.processes import PARENT_VARIABLE, ChildProcesses
from baton_testing.processes import fork_server

POSTS = ("baton_decode_worker", "baton_prefill_worker", "baton_flexible_worker", "baton_gateway")
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


@dataclass(frozen=True)
class ForkedPost:
    """The part of `subprocess.Popen` that `ChildProcesses` uses."""

    pid: int

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def fork_posts() -> None:
    """For `baton up` in this process, from now on. Does not return in a post."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    up = os.getpid()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        fork_server.run(_post(theirs, up))
        sys.exit(0)
    theirs.close()
    start = ChildProcesses.start

    def forked(self: Any, name: str, argv: Sequence[str], environment: Mapping[str, str], log: Path) -> int:
        if argv[0] != sys.executable or argv[1] != "-m" or argv[2] not in POSTS:
            return start(self, name, argv, environment, log)
        request = {"argv": list(argv[1:]), "environment": {**environment, PARENT_VARIABLE: str(up)}}
        with log.open("ab") as output:
            socket.send_fds(ours, [json.dumps(request).encode()], [output.fileno()])
        post = ForkedPost(int(ours.recv(32)))
        self._children[name] = post
        self._notify_guard(f"+{post.pid}")
        return post.pid

    ChildProcesses.start = forked  # type: ignore[method-assign]


def _post(requests: socket.socket, up: int) -> list[str]:
    """The nursery: ends with `up`. Returns in a post, with what that runs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, fork_server.LARGEST, 1)
        if not message:
            os._exit(0)
        reader, writer = os.pipe()
        if (between := os.fork()) == 0:
            if post := os.fork():
                os.write(writer, str(post).encode())
                os._exit(0)
            for number in (requests.detach(), reader, writer):
                os.close(number)
            return _become(json.loads(message), descriptors[0], up)
        os.waitpid(between, 0)
        requests.send(os.read(reader, 32))
        for number in (reader, writer, *descriptors):
            os.close(number)


def _become(request: dict[str, object], output: int, up: int) -> list[str]:
    while os.getppid() != up:  # the one between them has not ended yet
        try:
            os.kill(up, 0)
        except ProcessLookupError:
            os._exit(1)
        time.sleep(0.001)
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != up:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return fork_server.become(request, [os.open(os.devnull, os.O_RDONLY), output, os.dup(output)])


if __name__ == "__main__":
    program = sys.argv.pop(1)
    fork_posts()
    runpy.run_module(program, run_name="__main__", alter_sys=True)
