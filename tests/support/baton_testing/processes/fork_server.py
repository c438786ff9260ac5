"""Has imported what workers need, and forks them: run as a program by `prepared`, which speaks with it.

Each request is one message with three descriptors: the child's output, its errors, and a pipe that tells its process
id and, once it ended, its status. The end of the messages is the end of all children.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys

MODULES = ("baton_decode_worker", "baton_prefill_worker", "baton_flexible_worker")
LARGEST = 1 << 20


def serve(requests: socket.socket) -> tuple[str, list[str]] | None:
    """Forks until the messages end. In a child: the module to run and its arguments; None: all is over."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    tells: dict[int, int] = {}
    sources: list[socket.socket | int] = [requests, woken]
    while True:
        ready, _, _ = select.select(sources, [], [])
        if woken in ready:
            os.read(woken, 4096)
        if requests in ready:
            message, descriptors, _, _ = socket.recv_fds(requests, LARGEST, 3)
            if not message:
                for child in tells:
                    os.kill(child, signal.SIGKILL)
                return None
            output, errors, told = descriptors
            child = os.fork()
            if child == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for number in (woken, wakes, requests.detach(), told, *tells.values()):
                    os.close(number)
                return become(json.loads(message), output, errors)
            os.close(output)
            os.close(errors)
            os.write(told, f"{child}\n".encode())
            tells[child] = told
        tell_ends(tells)


def become(request: dict[str, object], output: int, errors: int) -> tuple[str, list[str]]:
    """The child's own input, output and environment."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, standard in ((nothing, 0), (output, 1), (errors, 2)):
        os.dup2(number, standard)
        os.close(number)
    os.environ.clear()
    environment, argv = request["environment"], request["argv"]
    assert isinstance(environment, dict)
    assert isinstance(argv, list)
    os.environ.update(environment | {"BATON_PARENT_PID": str(os.getppid())})
    return argv[0], argv[1:]


def tell_ends(tells: dict[int, int]) -> None:
    while tells:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child == 0:
            return
        told = tells.pop(child)
        try:
            os.write(told, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        except BrokenPipeError:  # nobody asks any more
            pass
        os.close(told)


def main() -> None:
    sys.path[0] = ""  # as of `python -m`
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the tests, which end the messages
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    for module in MODULES:
        importlib.import_module(f"{module}.__main__")
        del sys.modules[f"{module}.__main__"]
    gc.freeze()
    started = serve(socket.socket(fileno=int(sys.argv[1])))
    if started is not None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        module, arguments = started
        sys.argv[1:] = arguments
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
