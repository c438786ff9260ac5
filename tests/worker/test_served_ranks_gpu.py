"""Deployments whose workers have several ranks on GPUs: prompts are handed over, answers are the known ones."""

from __future__ import annotations

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from baton_testing.engine import tiny_llama
from baton_testing.processes.deployment import MIB, Deployment, Shape
from baton_worker.building.rank_gpus import SHARE_VARIABLE

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

QUESTIONS = tiny_llama.LONG_ANSWERS[:6]
MAX_TOKENS = 64
FLAGS = ("--device", "cuda", "--dtype", "float32", "--kv-cache-bytes", str(64 * MIB), "--max-sequences", "4")


def ask(deployment: Deployment, question: str) -> str:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
    }
    request = urllib.request.Request(
        f"{deployment.base_url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return str(json.load(response)["choices"][0]["message"]["content"])


DEGREES = [(2, 1), (1, 2), (2, 2), (1, 4), (4, 1)]


@pytest.mark.parametrize(("prefill", "decode"), DEGREES, ids=[f"P{degrees[0]}-D{degrees[1]}" for degrees in DEGREES])
def test_prompts_are_handed_over_between_ranks_on_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefill: int, decode: int
) -> None:
    if torch.cuda.device_count() < max(prefill, decode):
        monkeypatch.setenv(SHARE_VARIABLE, "1")
    shape = Shape(
        worker_flags=FLAGS,
        prefill_flags=("--tensor-parallel", str(prefill)),
        decode_flags=("--tensor-parallel", str(decode)),
    )
    with Deployment(tmp_path, shape) as deployment, ThreadPoolExecutor(3) as threads:
        texts = list(threads.map(lambda question: ask(deployment, question), QUESTIONS))
        for question, text in zip(QUESTIONS, texts, strict=True):
            assert text.startswith(tiny_llama.sure_text(question, MAX_TOKENS))
        states = [worker.state() for worker in deployment.workers]
        assert [state["transfer"]["handovers"] for state in states] == [len(QUESTIONS)] * 2
