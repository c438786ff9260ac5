"""`baton chat`: history, settings, and turns that fail."""

from __future__ import annotations

import pytest

from baton_local.client import Answer, AnswerEnd, AnswerError, ClientRequest
from baton_local.commands.chat import TerminalChat, _converse, speed


def answered(text: str) -> Answer:
    return Answer(
        0.0, 0.0, [0.25, 0.35, 0.45], texts={0: text}, tokens=3, finished={0: "stop"}, ended_s=0.45, end=AnswerEnd.WHOLE
    )


def test_each_question_is_sent_with_the_history_and_the_system_message() -> None:
    conversation = TerminalChat("tiny")
    assert conversation.command("/system Be brief.") == "(system message set)"
    _converse(conversation, "One?", lambda request: answered("1"))
    sent: list[ClientRequest] = []

    def send(request: ClientRequest) -> Answer:
        sent.append(request)
        return answered("2")

    _converse(conversation, "Two?", send)
    body = sent[0].body
    assert [message["content"] for message in body["messages"]] == ["Be brief.", "One?", "1", "Two?"]
    assert body["stream"] is True
    assert "tools" not in body


def test_settings_are_sent_until_they_are_reset() -> None:
    conversation = TerminalChat("tiny")
    assert conversation.command("/set temperature 0.2") == "(temperature: 0.2)"
    assert conversation.request("x").body["temperature"] == 0.2
    assert conversation.command("/set temperature") == "(temperature: the default)"
    assert "temperature" not in conversation.request("x").body
    assert conversation.command("/set max_tokens many") == "max_tokens: 'many' is not a number"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/claer", "did you mean /clear?"),
        ("/set temprature 1", "did you mean temperature?"),
        ("/help", "/system TEXT"),
    ],
)
def test_what_is_mistyped_is_answered_with_what_was_meant(line: str, words: str) -> None:
    assert words in TerminalChat("tiny").command(line)


def test_a_refused_or_stopped_turn_is_forgotten_and_the_conversation_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    conversation = TerminalChat("tiny")
    _converse(conversation, "One?", lambda request: answered("1"))

    def refuse(request: ClientRequest) -> Answer:
        raise AnswerError("too long")

    def stop(request: ClientRequest) -> Answer:
        raise KeyboardInterrupt

    _converse(conversation, "Two?", refuse)
    _converse(conversation, "Three?", stop)
    printed = capsys.readouterr().out
    assert "baton: too long; /clear forgets the conversation" in printed
    assert "(stopped; this turn is forgotten)" in printed
    assert len(conversation.turns) == 2
    conversation.command("/clear")
    assert conversation.turns == []
    conversation.command("/exit")
    assert conversation.is_over


def test_an_answer_ends_with_its_speed() -> None:
    assert speed(answered("x")) == "[3 tokens, first after 250 ms, 10.0 tokens/s]"
