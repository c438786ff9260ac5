"""Chat templates: equal to transformers, and harmless whatever a template does."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from baton_gateway.errors import BundleError, RefusedError
from baton_gateway.text.bundle import Bundle
from baton_gateway.text.chat_template import Conversation, RenderedChat
from baton_gateway.text.revision_text import TextModel, load_text_model
from baton_gateway.text.template_renderer import TemplateRenderer
from baton_testing.gateway.made_tokenizers import MadeTokenizer, bundle_hash, byte_level, make_bundle, sentencepiece

CONVERSATIONS = [
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": "  Be brief. "}, {"role": "user", "content": "Grüße 東京 🏃"}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "<|end|>c"}],
    [{"role": "user", "content": ""}],
]
TEMPLATES = {
    "own": None,
    "llama2": (
        "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
        "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
        "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
        "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('must alternate') }}{% endif %}"
        "{% if loop.index0 == 0 and system_message != false %}"
        "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
        "{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
        "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
        "{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
    ),
    "blocks": (
        "{%- for message in messages %}\n    {%- if loop.first %}\n{{ bos_token }}\n    {%- endif %}\n"
        "    {% generation %}{{ message.content }}{% endgeneration %}\n"
        "    {% if loop.index > 5 %}{% break %}{% endif %}\n"
        "{%- endfor %}\n{{ messages | tojson }}{{ {'a': 'é<'} | tojson(indent=2) }}{{ strftime_now('%Y') }}"
        "{% set ns = namespace(seen=false) %}{% set ns.seen = true %}{{ ns.seen }}{{ tools }}{{ unknown }}"
    ),
}


def _files(tokenizer: MadeTokenizer, template: str | None) -> dict[str, str | None]:
    files = tokenizer.files()
    return files if template is None else files | {"chat_template.jinja": template}


def _model(tokenizer: MadeTokenizer, template: str | None) -> TextModel:
    data = make_bundle(_files(tokenizer, template))
    return load_text_model(data, bundle_hash(data))


def _reference(folder: Path, tokenizer: MadeTokenizer, template: str | None) -> object:
    from transformers import AutoTokenizer

    for name, text in _files(tokenizer, template).items():
        if text is not None:
            (folder / name).write_text(text)
    config = json.loads((folder / "tokenizer_config.json").read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").unlink()
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture
async def renderer() -> AsyncIterator[TemplateRenderer]:
    renderer = TemplateRenderer()
    await renderer.start()
    yield renderer
    await renderer.stop()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("template", list(TEMPLATES))
@pytest.mark.parametrize("make", [byte_level, sentencepiece])
async def test_rendered_chats_have_the_ids_of_transformers(
    make: object, template: str, renderer: TemplateRenderer, tmp_path: Path
) -> None:
    assert callable(make)
    tokenizer = make()
    model = _model(tokenizer, TEMPLATES[template])
    reference = _reference(tmp_path, tokenizer, TEMPLATES[template])
    for messages in CONVERSATIONS:
        rendered = await renderer.render(model.bundle, Conversation(tuple(messages)))
        expected = reference.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)  # type: ignore[attr-defined]
        assert rendered.text == expected
        ids = reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)  # type: ignore[attr-defined]
        if not rendered.cuts:  # transformers makes special tokens of what a client spelled
            assert model.encode_rendered(rendered.text) == ids
    for text in ("Hello fox", "", " 東京"):
        assert model.encode_prompt(text) == reference(text)["input_ids"]  # type: ignore[operator]


def _bundle(template: str | None) -> Bundle:
    return Bundle(bundle_hash(str(template).encode()), "{}", template, {}, ())


def chat(*texts: str) -> Conversation:
    return Conversation(tuple({"role": "user", "content": text} for text in texts))


BAD_TEMPLATES = (
    "{{ 'a' * 10**9 }}",
    "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
    "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(64) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ ''.__class__.__mro__ }}",
    "{{ messages.append(1) }}",
    "{{ messages[99].content.x }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% for",
    "{% include '/etc/passwd' %}",
    "{{ 1 / 0 }}",
    "{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}",
)


async def test_a_bad_template_fails_alone_and_within_its_time() -> None:
    renderer = TemplateRenderer(render_s=0.5)
    for template in BAD_TEMPLATES:
        with pytest.raises(RefusedError) as refusal:
            await renderer.render(_bundle(template), chat("x"))
        assert (refusal.value.problem.status, refusal.value.problem.code) == (500, "template_failed"), template
        assert await renderer.render(_bundle("{{ messages[0].content }}"), chat("x")) == RenderedChat("x")
    await renderer.stop()


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_renderer_that_dies_or_stands_still_costs_no_request(signum: signal.Signals) -> None:
    """Found by SIGSTOP under load: its request was told that the template had failed."""
    renderer = TemplateRenderer(render_s=0.5)
    await renderer.start()
    assert renderer._short.process.pid is not None
    os.kill(renderer._short.process.pid, signum)
    assert await renderer.render(_bundle("{{ messages[0].content }}"), chat("x")) == RenderedChat("x")
    await renderer.stop()


async def test_a_request_that_is_cancelled_while_the_renderer_starts_leaves_no_answer_behind() -> None:
    """Found by 2,000 clients that hung up at once: each later request was given the answer of the one before it."""
    renderer = TemplateRenderer(render_s=5.0)
    bundle = _bundle("{{ messages[0].content }}")
    for delay_s in (0.0, 0.005, 0.02):
        asked = asyncio.create_task(renderer.render(bundle, chat("somebody else's")))
        await asyncio.sleep(delay_s)
        asked.cancel()
        await asyncio.wait([asked])
        for text in ("mine", "mine too"):
            assert await renderer.render(bundle, chat(text)) == RenderedChat(text)
        await renderer.stop()


async def test_a_template_may_refuse_messages_and_the_client_reads_why(renderer: TemplateRenderer) -> None:
    with pytest.raises(RefusedError) as refusal:
        await renderer.render(_bundle("{{ raise_exception('roles must alternate') }}"), chat())
    assert refusal.value.problem.status == 400
    assert "roles must alternate" in refusal.value.problem.message


async def test_a_template_that_cannot_write_broken_arguments_refuses_them(renderer: TemplateRenderer) -> None:
    """The client's fault and not the model's: it was told of a template that failed."""
    bundle = _bundle(
        "{% for message in messages %}{% for call in message.tool_calls %}{% for key, value in "
        "call.function.arguments | items %}{{ key }}={{ value }}{% endfor %}{% endfor %}{% endfor %}"
    )

    def called(arguments: object) -> Conversation:
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
        return Conversation(({"role": "assistant", "content": "", "tool_calls": [call]},))

    assert await renderer.render(bundle, called({"a": 1})) == RenderedChat("a=1")
    with pytest.raises(RefusedError) as refusal:
        await renderer.render(bundle, called('{"a": '))
    assert (refusal.value.problem.status, refusal.value.problem.param) == (400, "messages")
    assert "arguments of a call" in refusal.value.problem.message


async def test_a_model_without_a_template_says_so(renderer: TemplateRenderer) -> None:
    with pytest.raises(RefusedError) as refusal:
        await renderer.render(_bundle(None), chat())
    assert refusal.value.problem.code == "no_chat_template"


def test_a_bundle_must_be_what_its_hash_says() -> None:
    data = byte_level().bundle()
    with pytest.raises(BundleError, match="hash"):
        load_text_model(data, "0" * 64)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tokenizer.json": None}, "tokenizer.json"),
        ({"tokenizer.json": "{}"}, "tokenizer.json"),
        ({"tokenizer_config.json": "{"}, "tokenizer_config.json"),
        ({"config.json": "[1"}, "config.json"),
    ],
)
def test_a_broken_file_in_a_bundle_is_named(change: dict[str, str | None], named: str) -> None:
    data = make_bundle(byte_level().files() | change)
    with pytest.raises(BundleError, match=named):
        load_text_model(data, bundle_hash(data))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, {"<|end|>"}),
        ({"generation_config.json": '{"eos_token_id": [1, 2]}'}, {"<|end|>", "<|system|>"}),
        ({"generation_config.json": '{"eos_token_id": 3}'}, {"<|end|>", "<|user|>"}),
        ({"tokenizer_config.json": "{}", "config.json": "{}"}, set()),
    ],
)
def test_end_ids_come_from_the_models_files(change: dict[str, str | None], expected: set[str]) -> None:
    tokenizer = byte_level()
    data = make_bundle(tokenizer.files() | change)
    model = load_text_model(data, bundle_hash(data))
    assert {tokenizer.tokenizer.id_to_token(token) for token in model.eos_ids} == expected


def test_the_default_template_of_several_is_taken() -> None:
    templates = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    config = json.dumps({"chat_template": templates})
    data = make_bundle(byte_level().files() | {"tokenizer_config.json": config, "chat_template.jinja": None})
    assert load_text_model(data, bundle_hash(data)).bundle.chat_template == "yes"
