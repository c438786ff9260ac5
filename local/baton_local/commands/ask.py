"""`baton ask`: one question to the running deployment, answered on standard output."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from baton_local.client import ask, chat
from baton_local.errors import OutputClosedError
from baton_local.fleet.client_keys import key_for
from baton_local.fleet.ready_record import ready_record


@dataclass(frozen=True, slots=True)
class AskOptions:
    """The options of `baton ask`."""

    text: str
    name: str | None = None
    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    stream: bool = True


def run_ask(options: AskOptions) -> int:
    """Ask and print the answer. Raises LocalError."""
    record = ready_record(options.name)
    model = options.model or record.served_name
    fields = {"max_tokens": options.max_tokens, "temperature": options.temperature}
    question = chat(model, options.text, stream=options.stream, **fields)
    answer = ask(record.endpoint, question, show, key_for(record, os.environ))
    print("" if options.stream else answer.texts[0])
    return 0


def show(text: str) -> None:
    """Print a piece of an answer at once. Raises OutputClosedError."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise OutputClosedError from error
