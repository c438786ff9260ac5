"""Families that differ most from Llama, through gateway, P and D: what they answer is what `transformers` generates."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from baton_testing.engine import tiny_llama
from baton_testing.engine.models import reference_logits, reference_model, write_random_model
from baton_testing.processes.deployment import Deployment, Shape
from baton_testing.processes.prepared import Prepared

pytestmark = pytest.mark.processes

MAX_TOKENS = 32
LENGTHS = (1, 16, 40, 129)
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
CLEAR = 1e-3
"""A lead in logits that no order of additions takes away."""


@pytest.fixture(scope="module", params=["qwen3-moe", "mixtral", "phi3", "glm4", "gpt-oss", "gemma3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights, the tokenizer of the tiny Llama."""
    folder: Path = tmp_path_factory.mktemp("model") / str(request.param)
    vocabulary = json.loads((tiny_llama.FOLDER / "config.json").read_text())["vocab_size"]
    write_random_model(folder, str(request.param), vocab_size=vocabulary)
    for name in TOKENIZER:
        if (tiny_llama.FOLDER / name).exists():
            shutil.copy(tiny_llama.FOLDER / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory, model: Path, prepared: Prepared) -> Iterator[Deployment]:
    flags = ("--dtype", "float32", "--kv-cache-bytes", str(16 << 20), "--max-step-tokens", "64")
    shape = Shape(model=model, worker_flags=flags)
    with Deployment(tmp_path_factory.mktemp("deployment"), shape, prepared) as running:
        yield running


def greedy(model: Any, prompt: list[int], ends: set[int]) -> list[int]:
    """The answer of `transformers` without a cache, as far as each token leads clearly."""
    ids: list[int] = []
    while len(ids) < MAX_TOKENS:
        logits = reference_logits(model, [*prompt, *ids])[-1].clone()
        logits[sorted(ends)] = -torch.inf
        first, second = logits.topk(2).values.tolist()
        if first - second < CLEAR:
            break
        ids.append(int(logits.argmax()))
    return ids


def answer(deployment: Deployment, prompt: list[int], tokens: int) -> str:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "min_tokens": tokens, "temperature": 0}
    request = urllib.request.Request(
        f"{deployment.base_url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        text: str = json.load(response)["choices"][0]["text"]
    return text


def test_answers_are_what_transformers_generates(deployment: Deployment, model: Path) -> None:
    reference, random = reference_model(model), Random(5)
    end_ids = json.loads((model / "generation_config.json").read_text())["eos_token_id"]
    ends = set(end_ids if isinstance(end_ids, list) else [end_ids])
    compared = 0
    for length in LENGTHS:
        prompt = [random.randrange(300, 400) for _ in range(length)]
        expected = greedy(reference, prompt, ends)
        compared += len(expected)
        for _ in range(2 if expected else 0):  # the second finds the first's blocks, at both workers
            assert answer(deployment, prompt, len(expected)) == tiny_llama.text_of(tuple(expected)), f"{length} tokens"
    assert compared >= len(LENGTHS) * MAX_TOKENS // 2
    deployment.await_idle()
