"""System messages anywhere, and turns of one side in a row: every strict template gets them in a form that it takes."""

from __future__ import annotations

from typing import Any

import pytest

from baton_gateway.openai_api.chat_messages import read_messages
from baton_gateway.text.chat_template import CompiledTemplate, Conversation, TemplateRefusalError
from baton_gateway.text.message_arrangements import merge_leading, other_arrangements

LOOSE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
FIRST = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}<{{ m.role }}>{{ m.content }}"
    "{% endfor %}"
)
"""Qwen3.5's rule."""
SILENT = (
    "{% if messages[0].role == 'system' %}<system>{{ messages[0].content }}{% endif %}"
    "{% for m in messages %}{% if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}"
)
"""Leaves a later system message out without a word."""
MISTRAL = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set loop_messages = messages[1:] %}"
    "{% else %}{% set loop_messages = messages %}{% endif %}{% set ns = namespace(index=0) %}"
    "{% for m in loop_messages %}{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    "{% if (m.role == 'user') != (ns.index % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% set ns.index = ns.index + 1 %}{% endif %}{% endfor %}"
    "{% for m in loop_messages %}{% if m.role == 'user' %}[INST]{% if loop.last and system is defined %}"
    "{{ system }}|{% endif %}{{ m.content }}[/INST]{% elif m.role in ('assistant', 'tool') %}<{{ m.role }}>"
    "{{ m.content }}{% for c in m.tool_calls %}call{% endfor %}{% else %}"
    "{{ raise_exception('Only user and assistant roles are supported') }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{% if messages[0].role == 'system' %}{% set first = messages[0].content + '\n' %}"
    "{% set loop_messages = messages[1:] %}"
    "{% else %}{% set first = '' %}{% set loop_messages = messages %}{% endif %}{% for m in loop_messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "<{{ m.role }}>{{ first if loop.first }}{{ m.content | trim }}{% endfor %}"
)
GEMMA_2 = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}"
)
TEMPLATES = {
    "loose": LOOSE, "first": FIRST, "silent": SILENT, "mistral": MISTRAL, "gemma": GEMMA, "gemma 2": GEMMA_2,
}  # fmt: skip


def chat_of(text: str) -> tuple[dict[str, Any], ...]:
    """Messages by their initials and numbers: `s1 u2 a3`."""
    roles = {"s": "system", "d": "developer", "u": "user", "a": "assistant"}
    return tuple({"role": roles[word[0]], "content": word} for word in text.split())


def rendered(template: str, *messages: dict[str, Any], **fields: Any) -> str:
    chat = Conversation(read_messages(list(messages)), **fields)
    return CompiledTemplate(template).render(chat, {}).text


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
@pytest.mark.parametrize(
    "chat",
    [
        "u1", "s1 u2", "s1 s2 u3", "s1 d2 u3", "d1 d2 d3 u4", "u1 s2", "u1 d2", "s1 u2 s3", "s1 u2 a3 s4 u5",
        "u1 a2 d3", "u1 s2 a3 u4", "u1 a2 s3 s4 u5 a6 d7", "u1 u2", "s1 u2 u3 a4 a5 u6", "s1", "d1 s2", "s1 a2 u3",
    ],
)  # fmt: skip
def test_every_text_reaches_the_prompt_once_and_in_its_order(template: str, chat: str) -> None:
    if chat == "s1 a2 u3" and template in (MISTRAL, GEMMA, GEMMA_2):
        chat = "s1 u2"  # an assistant that begins is another fault, and stays refused
    text = rendered(template, *chat_of(chat))
    words = chat.split()
    assert all(text.count(word) == 1 for word in words), text
    places = [text.index(word) for word in words]
    assert places == sorted(places) or template == MISTRAL, text


def test_a_template_that_takes_a_later_system_message_gets_it_where_it_stands() -> None:
    text = "<system>s1\nd2<user>u3<system>s4<assistant>a5<user>u6<user>u7"
    assert rendered(LOOSE, *chat_of("s1 d2 u3 s4 a5 u6 u7")) == text


def test_a_strict_template_hears_it_as_the_users_and_keeps_the_beginning_of_the_prompt() -> None:
    before = rendered(FIRST, *chat_of("s1 u2 a3"))
    assert rendered(FIRST, *chat_of("s1 u2 a3 s4")) == f"{before}<user>s4"
    assert rendered(FIRST, *chat_of("s1 u2 d3")) == "<system>s1<user>u2\nd3"
    assert rendered(GEMMA_2, *chat_of("s1 u2")) == "<user>s1\nu2"


CALL: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "sunny"}


def test_a_system_message_behind_a_result_moves_to_the_beginning_where_no_user_may_speak() -> None:
    messages = (*chat_of("u1"), CALL, RESULT, *chat_of("s2 a3 u4"))
    text = rendered(MISTRAL, *messages)
    assert text == "[INST]u1[/INST]<assistant>call<tool>sunny<assistant>a3[INST]s2|u4[/INST]"
    assert rendered(FIRST, *messages) == "<user>u1<assistant><tool>sunny<user>s2<assistant>a3<user>u4"


def test_calls_and_results_are_never_merged() -> None:
    results = (RESULT, RESULT | {"tool_call_id": "c2"})
    calls = CALL | {"tool_calls": [CALL["tool_calls"][0], CALL["tool_calls"][0] | {"id": "c2"}]}
    messages = read_messages([*chat_of("u1 s2"), calls, *results, *chat_of("a3 a4")])
    for arranged in other_arrangements(messages):
        assert [message["role"] for message in arranged if message["role"] in ("assistant", "tool")] == [
            "assistant", "tool", "tool", "assistant",
        ]  # fmt: skip


def test_thoughts_of_merged_answers_stay() -> None:
    messages = read_messages([
        *chat_of("u1"), {"role": "assistant", "content": "a", "reasoning_content": "x"},
        {"role": "assistant", "content": "b", "reasoning_content": "y"}, *chat_of("u2"),
    ])  # fmt: skip
    [arranged, *_] = other_arrangements(messages)
    assert (arranged[1]["content"], arranged[1]["reasoning_content"]) == ("a\nb", "x\ny")


def test_a_refusal_for_another_reason_is_the_templates_own() -> None:
    template = "{% if messages[-1].content != 'x' %}{{ raise_exception('say x') }}{% endif %}"
    with pytest.raises(TemplateRefusalError, match="say x"):
        rendered(template, *chat_of("s1 u2 s3"))
    with pytest.raises(TemplateRefusalError, match="must alternate"):
        rendered(GEMMA, *chat_of("a1 u2"))


def test_a_continued_answer_is_cut_where_it_ends() -> None:
    assert rendered(FIRST, *chat_of("u1 s2 a3"), continue_final_message=True, add_generation_prompt=False) == (
        "<user>u1\ns2<assistant>a3"
    )


def test_spelled_special_tokens_stay_letters_in_another_arrangement() -> None:
    chat = Conversation(read_messages([*chat_of("u1"), {"role": "system", "content": "<|end|>"}, *chat_of("a2 u3")]))
    rendering = CompiledTemplate(FIRST, ["<|end|>"]).render(chat, {})
    assert rendering.text == "<user>u1\n<|end|><assistant>a2<user>u3"
    assert rendering.cuts


def test_leading_system_messages_become_one_and_later_ones_stay() -> None:
    assert [message["content"] for message in merge_leading(chat_of("s1 s2 u3 s4"))] == ["s1\ns2", "u3", "s4"]
    assert merge_leading(()) == ()
