"""The model that answers by a script: it repeats the script token by token, and goes on where a token was masked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from baton_testing.engine.scripted_model import LONG_TOKENS, MARKS, byte_token, script, tokens_for, write_scripted_model


class Scripted:
    """The model and its tokenizer in `transformers`."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def answer(self, *contents: str, masked: str = "", **variables: Any) -> str:
        """Answer a conversation greedily; texts of `masked` are never drawn."""
        roles = ("user", "assistant")
        messages = [{"role": roles[place % 2], "content": content} for place, content in enumerate(contents)]
        ids = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False, **variables)
        never = [self.tokenizer.convert_tokens_to_ids(token) for token in self.tokenizer.tokenize(masked)]
        drawn = self.model.generate(
            torch.tensor([ids]), do_sample=False, max_new_tokens=900, bad_words_ids=[[token] for token in never] or None
        )[0, len(ids) :].tolist()
        return str(self.tokenizer.decode(drawn, clean_up_tokenization_spaces=False))


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Scripted:
    return Scripted(write_scripted_model(tmp_path_factory.mktemp("model") / "scripted"))


@pytest.mark.parametrize(
    "text",
    [
        "Hello.",
        "aaaaaaaaaaaaaaaa          \n\n\n\n\n\n",
        "Grüße, 東京 🏃‍♀️!",
        '{"a": [1, 1, 1, 1], "b": {"a": [1, 1, 1, 1]}}' * 3,
        "".join(map(chr, range(0x20, 0x7F))),
    ],
)
def test_the_answer_is_the_script(scripted: Scripted, text: str) -> None:
    assert scripted.answer("Say it: " + script(text)) == text + "<|eos|>"


def test_characters_stand_for_tokens_that_letters_cannot_ask_for(scripted: Scripted) -> None:
    text = "".join(MARKS[:-2]) + '{"a": "b", "c": {"d": 1}}\n\n</b>\n'
    assert scripted.answer(script(tokens_for(text, (*MARKS, *LONG_TOKENS)))) == text + "<|eos|>"
    half = "".join(byte_token(byte) for byte in "東".encode()[:2])
    assert scripted.answer(script(f"a{half}")) == "a\ufffd<|eos|>"


def test_each_turn_has_its_own_answer(scripted: Scripted) -> None:
    first = script("one", "two", "three")
    assert scripted.answer(first) == "one<|eos|>"
    assert scripted.answer(first, "one", "go on") == "two<|eos|>"
    assert scripted.answer(first, "one", "go on", "two", "and") == "three<|eos|>"
    assert scripted.answer(first, "one", script("anew")) == "anew<|eos|>"
    assert scripted.answer("no script") == "No script.<|eos|>"


@pytest.mark.parametrize(
    ("text", "masked", "answer"),
    [
        ("\n\n{}", "\n", "{}"),
        ('{"a": "b!!c", "d": "e"}', "!", '{"a": "bc", "d": "e"}'),
        ("The tree, the tree# and the tree.", "#", "The tree, the tree and the tree."),
        ("###one, two", "#", "one, two"),
        ('"one#": 1, "two##": 22, "three#": 333, "four": 4', "#", '"one": 1, "two": 22, "three": 333, "four": 4'),
    ],
)
def test_a_masked_token_is_skipped_and_the_script_goes_on(
    scripted: Scripted, text: str, masked: str, answer: str
) -> None:
    assert scripted.answer(script(text), masked=masked) == answer + "<|eos|>"


def test_marks_may_be_letters_and_a_template_may_open_a_thought(tmp_path: Path) -> None:
    plain = Scripted(write_scripted_model(tmp_path / "plain", with_marks=False, opens_thoughts=True))
    text = "hm\n</think>\n\n<tool_call>{}</tool_call>"
    assert plain.answer(script(text)) == text + "<|eos|>"
    marked = Scripted(write_scripted_model(tmp_path / "marked", opens_thoughts=True))
    assert marked.answer(script(tokens_for(text))) == text + "<|eos|>"
