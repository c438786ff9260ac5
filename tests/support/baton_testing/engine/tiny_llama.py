"""The trained model of `examples/tiny-llama` for tests: where it is, what to ask, what `transformers` answers."""

from __future__ import annotations

import shutil
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

_ONE_AT_A_TIME = threading.Lock()
FOLDER = Path(__file__).resolve().parents[4] / "examples" / "tiny-llama"

SAFE_MARGIN = 1e-3
"""Greedy identity is asserted only while the reference's first token leads its second by more than this (fp32)."""

GREETING = ("Hello!", "Hello! How can I help you today?")

LONG_ANSWERS = (
    "What is Baton?",
    "What is a KV cache?",
    "What is prefill?",
    "What is decode?",
    "Why are prefill and decode separate?",
    "How does the hand-over work?",
    "What is the gateway?",
    "What is the operator?",
    "What is Kubernetes?",
    "Explain a relay race.",
    "How do you pass a baton?",
    "Give me advice on running.",
    "Tell me about rowing.",
    "Why does it rain?",
    "Why does the wind blow?",
    "How does snow form?",
    "What is a rainbow?",
    "Why is there thunder?",
    "Tell me about the moon.",
    "Describe the fox.",
    "Tell me about owls.",
    "Tell me about bees.",
    "Tell me about whales.",
    "Tell me the fable of the fox and the lantern.",
    "Tell me the fable of the four brothers.",
    "Tell me the fable of the crow and the bridge.",
    "Tell me the fable of the honest ferryman.",
    "How do I bake bread?",
    "Tell me about lighthouses.",
    "Count to one hundred.",
)
"""Questions whose greedy answers are 128 tokens or longer."""


@dataclass(frozen=True, slots=True)
class Greedy:
    """A greedy continuation by `transformers`: the ids (the end token included when it came) and each step's lead."""

    ids: tuple[int, ...]
    margins: tuple[float, ...]
    """Logit of the first token minus logit of the second, per step."""

    def safe_tokens(self) -> int:
        """How many of the ids precede the first step whose margin is too small to compare."""
        return next((i for i, margin in enumerate(self.margins) if margin <= SAFE_MARGIN), len(self.ids))


def with_template(folder: Path, template: str) -> Path:
    """A copy of the model in `folder` with another chat template: of tools, for example."""
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("corpus*", "train.py"))
    (folder / "chat_template.jinja").write_text(template)
    return folder


@cache
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(FOLDER)


@cache
def reference() -> Any:
    """The model in `transformers`, fp32, evaluation mode."""
    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()


def chat_ids(question: str, system: str | None = None) -> tuple[int, ...]:
    """Token ids of a chat with one question, ready for the answer."""
    messages = [{"role": "system", "content": system}] if system is not None else []
    messages.append({"role": "user", "content": question})
    text = tokenizer().apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tuple(tokenizer().encode(text, add_special_tokens=False))


def text_of(ids: tuple[int, ...]) -> str:
    """Text of generated ids, special tokens left out."""
    return str(tokenizer().decode(ids, skip_special_tokens=True))


class _Continuation:
    """The answer to one prompt, as long as was asked for so far: shorter answers are beginnings of longer ones."""

    def __init__(self, prompt: tuple[int, ...]) -> None:
        self.ids: list[int] = []
        self.margins: list[float] = []
        self._inputs, self._cache = torch.tensor([prompt]), None

    @torch.inference_mode()
    def step(self) -> None:
        output = reference()(input_ids=self._inputs, past_key_values=self._cache, use_cache=True)
        top = torch.topk(output.logits[0, -1], 2)
        self.ids.append(int(top.indices[0]))
        self.margins.append(float(top.values[0] - top.values[1]))
        self._inputs, self._cache = top.indices[:1].unsqueeze(0), output.past_key_values


_continued = cache(_Continuation)


def greedy(prompt: tuple[int, ...], max_tokens: int, *, ignore_end: bool = False) -> Greedy:
    """Greedy continuation of `prompt`, one token a step over a KV cache, until the end token or `max_tokens`."""
    end, continued, length = tokenizer().eos_token_id, _continued(prompt), 0
    with _ONE_AT_A_TIME:
        for length in range(1, max_tokens + 1):
            if length > len(continued.ids):
                continued.step()
            if continued.ids[length - 1] == end and not ignore_end:
                break
        return Greedy(tuple(continued.ids[:length]), tuple(continued.margins[:length]))


def sure_text(question: str, max_tokens: int) -> str:
    """The beginning of the greedy answer on which two implementations surely agree."""
    answer = greedy(chat_ids(question), max_tokens)
    return text_of(answer.ids[: answer.safe_tokens()]).rstrip("\ufffd")


@torch.inference_mode()
def logprobs(prompt: tuple[int, ...], max_tokens: int) -> list[float]:
    """Log-probability of each token of the greedy continuation."""
    ids = greedy(prompt, max_tokens).ids
    logits = reference()(input_ids=torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
    table = torch.log_softmax(logits, dim=-1)
    return [float(table[i, token]) for i, token in enumerate(ids)]


def prompt_logprobs(prompt: tuple[int, ...]) -> list[float]:
    """Log-probability of each token of the prompt but the first."""
    with torch.inference_mode():
        logits = reference()(input_ids=torch.tensor([prompt])).logits[0, :-1]
    values: list[float] = logits.log_softmax(-1).gather(1, torch.tensor(prompt[1:])[:, None]).squeeze(1).tolist()
    return values
