"""Where a model's chat template is found among the files of its bundle."""

from __future__ import annotations

import hashlib
import json

import pytest

from baton_gateway.text.bundle import parse_bundle


def template_of(**files: str) -> str | None:
    data = json.dumps({"tokenizer.json": "{}", **files}).encode()
    return parse_bundle(data, hashlib.sha256(data).hexdigest()).chat_template


def named(text: str) -> str:
    return json.dumps({"chat_template": text})


@pytest.mark.parametrize(
    ("files", "template"),
    [
        ({}, None),
        ({"chat_template.json": named("older")}, "older"),
        ({"chat_template.json": named("older"), "tokenizer_config.json": "{}"}, "older"),
        ({"chat_template.json": named("older"), "tokenizer_config.json": named("config")}, "config"),
        ({"chat_template.json": named("older"), "chat_template.jinja": "newest"}, "newest"),
        ({"chat_template.json": "{}"}, None),
    ],
)
def test_the_template_is_that_of_the_newest_kind_of_file(files: dict[str, str], template: str | None) -> None:
    assert template_of(**files) == template
