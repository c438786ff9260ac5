"""A helper process for tests: does what each question says, such as `bytes 1000`, `spin`, `kill` or `write`."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator

from baton_gateway.helper_processes.helper_main import answer_questions


def answers(question: bytes) -> Iterator[bytes]:
    word, _, number = question.decode().partition(" ")
    if word == "bytes":
        yield b"x" * int(number)
    if word == "spin":
        while True:
            pass
    if word == "sleep":
        time.sleep(3600)
    if word == "end":
        os._exit(3)
    if word == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "write":
        for _ in range(int(number)):
            print("thread panicked", file=sys.stderr, flush=True)
        yield b"written"
    yield b"done"


if __name__ == "__main__":
    answer_questions(answers, 1 << 30)
