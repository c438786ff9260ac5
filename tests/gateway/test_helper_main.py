"""A process apart's own side, as a process."""

from __future__ import annotations

import signal
import subprocess
import sys

ECHO = (
    "from baton_gateway.helper_processes.helper_main import answer_questions; "
    "answer_questions(lambda body: (body,), 1 << 40)"
)

LIMITED = (
    "import resource; from baton_gateway.helper_processes.helper_main import answer_questions\n"
    "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
    "answer_questions(lambda body: (b'%d' % resource.getrlimit(resource.RLIMIT_AS)[1],), 4 << 30)"
)


def test_a_process_apart_starts_under_a_lower_limit_of_memory_than_its_own() -> None:
    """Only root may raise a hard limit: the process ended, and every chat with it."""
    done = subprocess.run([sys.executable, "-c", LIMITED], input=b"\0\0\0\1?", capture_output=True, check=True)
    assert done.stdout[4:] == str(1 << 30).encode()


def test_a_process_apart_leaves_every_stop_to_its_gateway() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", ECHO], stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number in (None, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number is not None:
                process.send_signal(number)
            process.stdin.write(b"\0\0\0\2hi")
            process.stdin.flush()
            assert process.stdout.read(6) == b"\0\0\0\2hi"
        process.stdin.close()
        assert process.wait(20) == 0
