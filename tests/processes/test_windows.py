"""A model whose layers with a window keep and hand over the blocks of their window alone: answers over HTTP against one
engine that keeps every block."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import torch

from baton_engine.model.loading import load_model
from baton_testing.engine import tiny_llama
from baton_testing.engine.model_steps import RunnerSteps
from baton_testing.engine.models import write_random_model
from baton_testing.processes.deployment import Deployment, Shape, Worker
from baton_testing.processes.prepared import Prepared

pytestmark = pytest.mark.processes

BLOCK_TOKENS = 16
WINDOW = 24
MAX_TOKENS = 60
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
LENGTHS = (1, 15, 16, 24, 25, 40, 129, 180)


@pytest.fixture(scope="module", params=["gpt-oss", "gemma3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights, the tokenizer of the tiny Llama."""
    folder: Path = tmp_path_factory.mktemp("model") / str(request.param)
    vocabulary = json.loads((tiny_llama.FOLDER / "config.json").read_text())["vocab_size"]
    write_random_model(folder, str(request.param), vocab_size=vocabulary, sliding_window=WINDOW)
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


def complete(deployment: Deployment, prompt: list[int]) -> str:
    body = {
        "model": "tiny", "prompt": prompt, "max_tokens": MAX_TOKENS, "min_tokens": MAX_TOKENS, "temperature": 0,
    }  # fmt: skip
    request = urllib.request.Request(
        f"{deployment.base_url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        text: str = json.load(response)["choices"][0]["text"]
    return text


def received_by(worker: Worker) -> int:
    return int(worker.state()["transfer"]["kv_bytes_received"])


def test_answers_are_those_of_one_engine_and_only_windows_move(deployment: Deployment, model: Path) -> None:
    loaded = load_model(str(model), torch.float32, torch.device("cpu"))
    steps = RunnerSteps(loaded, slots=1, blocks_per_slot=16)
    windows = steps.pool.geometry.windows
    assert len(windows) > 1
    decode = deployment.of_role("decode")[0]
    random = Random(7)
    for length in LENGTHS:
        prompt = [random.randrange(300, 400) for _ in range(length)]
        expected = steps.generate(prompt, MAX_TOKENS)
        steps.execute(closes=[0])
        before = received_by(decode)
        for _ in range(2):  # the second finds the first's blocks, at both workers
            assert complete(deployment, prompt) == tiny_llama.text_of(tuple(expected)), f"{length} tokens"
        deployment.await_idle()
        blocks = -(-length // BLOCK_TOKENS)
        first = max(0, length - WINDOW + 1) // BLOCK_TOKENS
        moved = sum(blocks if window is None else blocks - first for window in windows)
        again = 0 if length % BLOCK_TOKENS == 0 else 1  # of each group: the last block, which is not whole
        size = decode.state()["block_bytes"]
        assert moved * size <= received_by(decode) - before <= (moved + again * len(windows)) * size
