"""`baton ask`: one question to the running deployment, answered on standard output."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from baton_local.client import ChatStream, Question, chat
from baton_local.fleet.record import read_record
from baton_local.fleet.run_dir import base_directory, find_run


@dataclass(frozen=True, slots=True)
class AskOptions:
    text: str
    name: str | None = None
    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    stream: bool = True


def run_ask(options: AskOptions) -> int:
    """Ask and print the answer. Raises LocalError."""
    record = read_record(find_run(base_directory(), options.name))
    model = options.model or record.served_name
    question = Question(model, options.text, options.max_tokens, options.temperature)
    if not options.stream:
        print(chat(record.endpoint, question))
        return 0
    for piece in ChatStream(record.endpoint, question):
        sys.stdout.write(piece.text)
        sys.stdout.flush()
    print()
    return 0
