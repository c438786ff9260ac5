"""`baton chat`: a conversation with the running deployment, with its history, streamed, without tools."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from baton_local.client import Answer, AnswerError, ClientRequest, ask
from baton_local.commands.ask import show
from baton_local.errors import StartError
from baton_local.fleet.client_keys import key_for
from baton_local.fleet.ready_record import ready_record
from baton_wire.suggestions import suggestion

PROMPT = "> "
HELP = """\
/system TEXT          set the system message (without TEXT: none)
/set max_tokens N     maximum tokens of an answer; also temperature, top_p and seed; without a value: the default
/clear                forget the conversation
/exit                 leave, like Ctrl-D; Ctrl-C stops an answer"""
COMMANDS = ("/system", "/set", "/clear", "/help", "/exit")
SETTINGS: dict[str, Callable[[str], int | float]] = {
    "max_tokens": int,
    "temperature": float,
    "top_p": float,
    "seed": int,
}


@dataclass(slots=True)
class TerminalChat:
    """The messages so far and the settings of the next answers. Pure."""

    model: str
    system: str | None = None
    settings: dict[str, int | float] = field(default_factory=dict)
    turns: list[dict[str, str]] = field(default_factory=list)
    is_over: bool = False

    def request(self, text: str) -> ClientRequest:
        """The streamed request for the next answer."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        messages = [*system, *self.turns, {"role": "user", "content": text}]
        options = {"stream": True, "stream_options": {"include_usage": True}}
        return ClientRequest(
            "/v1/chat/completions", {"model": self.model, "messages": messages, **options, **self.settings}
        )

    def answered(self, text: str, answer: str) -> None:
        """Remember a question and its answer."""
        self.turns += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]

    def command(self, line: str) -> str:
        """Carry out a line that begins with a slash; returns what to print."""
        word, _, rest = line.partition(" ")
        rest = rest.strip()
        match word:
            case "/exit":
                self.is_over = True
                return ""
            case "/clear":
                self.turns.clear()
                return "(forgotten)"
            case "/system":
                self.system = rest or None
                return "(system message set)" if rest else "(no system message)"
            case "/set":
                return self._set(*rest.partition(" ")[::2])
            case "/help":
                return HELP
        return f"unknown command {word}{suggestion(word, COMMANDS)}; /help lists them"

    def _set(self, name: str, value: str) -> str:
        if name not in SETTINGS:
            return f"unknown setting {name!r}{suggestion(name, SETTINGS)}; there are {', '.join(SETTINGS)}"
        if not value.strip():
            self.settings.pop(name, None)
            return f"({name}: the default)"
        try:
            self.settings[name] = SETTINGS[name](value)
        except ValueError:
            return f"{name}: {value.strip()!r} is not a number"
        return f"({name}: {self.settings[name]})"


def run_chat(name: str | None, conversation_of: Callable[[str], TerminalChat]) -> int:
    """Read lines until the end of the input. `conversation_of`: makes a conversation with a model of that name. Raises
    LocalError."""
    record = ready_record(name)
    key, is_terminal = key_for(record, os.environ), sys.stdin.isatty()
    conversation = conversation_of(record.served_name)
    if is_terminal:
        print(f"{conversation.model} at {record.endpoint}; /help lists commands")
    while not conversation.is_over:
        try:
            line = input(PROMPT if is_terminal else "").strip()
        except EOFError:
            break
        if line.startswith("/"):
            _print(conversation.command(line))
        elif line:
            _converse(conversation, line, lambda request: ask(record.endpoint, request, show, key))
    return 0


def _converse(conversation: TerminalChat, line: str, send: Callable[[ClientRequest], Answer]) -> None:
    """One question and its answer; a refusal or Ctrl-C ends the turn, not the conversation."""
    try:
        answer = send(conversation.request(line))
    except AnswerError as error:
        _print(f"baton: {error}" + ("; /clear forgets the conversation" if conversation.turns else ""))
    except KeyboardInterrupt:
        _print("\n(stopped; this turn is forgotten)")
    else:
        text = answer.texts.get(0, "")
        conversation.answered(line, text)
        _print(f"\n{speed(answer)}")


def speed(answer: Answer) -> str:
    """The end of an answer in a line: tokens, time to the first, and tokens per second after it."""
    words = f"{answer.tokens} tokens, first after {answer.ttft_s * 1e3:.0f} ms"
    if answer.tokens > 1 and answer.tpot_s > 0:
        words += f", {1 / answer.tpot_s:.1f} tokens/s"
    cut = "; cut at max_tokens" if answer.finished.get(0) == "length" else ""
    return f"[{words}{cut}]"


def check_settings(max_tokens: int | None, temperature: float | None) -> dict[str, int | float]:
    """The settings of the command line. Raises StartError."""
    if temperature is not None and not 0 <= temperature <= 2:
        raise StartError(f"--temperature: {temperature:g} is not allowed: must be from 0 to 2")
    given = {"max_tokens": max_tokens, "temperature": temperature}
    return {name: value for name, value in given.items() if value is not None}


def _print(text: str) -> None:
    if text:
        print(text, flush=True)
