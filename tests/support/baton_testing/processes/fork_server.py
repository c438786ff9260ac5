"""Has imported what its children need, and forks them: run as a program by `prepared`, which speaks with it.

Its argument is the descriptor of the messages. The first one names the modules to import: a tool that lists processes
by their command lines shall not find this one. Each other is a request, with four descriptors: the child's input, its
output, its errors, and a pipe that reports its process id and, once it ended, its status. The end of the messages is
the end of all children.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import os
import runpy
import select
import signal
import socket
import sys
import tempfile

LARGEST = 1 << 20


def serve(requests: socket.socket) -> list[str] | None:
    """Forks until the messages end. In a child: the arguments to run, as after `python`; None: the messages ended."""
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
            message, descriptors, _, _ = socket.recv_fds(requests, LARGEST, 4)
            if not message:
                for child in tells:
                    os.kill(child, signal.SIGKILL)
                return None
            *streams, reader = descriptors
            child = os.fork()
            if child == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for number in (woken, wakes, requests.detach(), reader, *tells.values()):
                    os.close(number)
                return become(json.loads(message), streams)
            for number in streams:
                os.close(number)
            os.write(reader, f"{child}\n".encode())
            tells[child] = reader
        tell_ends(tells)


def become(request: dict[str, object], streams: list[int]) -> list[str]:
    """The child's own input, output and environment."""
    for standard, number in enumerate(streams):
        os.dup2(number, standard)
        os.close(number)
    os.environ.clear()
    environment, argv = request["environment"], request["argv"]
    assert isinstance(environment, dict)
    assert isinstance(argv, list)
    os.environ.update(environment | {"BATON_PARENT_PID": str(os.getppid())})
    return argv


def tell_ends(tells: dict[int, int]) -> None:
    while tells:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child == 0:
            return
        pipe = tells.pop(child)
        try:
            os.write(pipe, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        except BrokenPipeError:  # the pipe has no reader any more
            pass
        os.close(pipe)


def import_ahead(module: str) -> None:
    """All that `python -m module` imports. What that runs is not kept: a child runs its lines anew."""
    importlib.import_module(module)
    program = f"{module}.__main__" if hasattr(sys.modules[module], "__path__") else module
    if program == module or importlib.util.find_spec(program) is not None:
        importlib.import_module(program)
        del sys.modules[program]


def run(argv: list[str]) -> None:
    """As `python argv…`, of which it knows `-m` and `-c`."""
    option, what, *arguments = argv
    sys.argv[1:] = arguments
    if option == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        with tempfile.NamedTemporaryFile("w", suffix=".py") as program:
            program.write(what)
            program.flush()
            runpy.run_path(program.name, run_name="__main__")


def main() -> None:
    sys.path[0] = ""  # as of `python -m`
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the tests, which end the messages
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    requests = socket.socket(fileno=int(sys.argv[1]))
    for module in json.loads(requests.recv(LARGEST) or b"[]"):
        import_ahead(module)
    gc.freeze()
    started = serve(requests)
    if started is not None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        run(started)


if __name__ == "__main__":
    main()
