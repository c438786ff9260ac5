"""Workers that only embed: no decode worker, vectors and scores of transformers, the same in any company."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from baton_testing.engine import tiny_llama
from baton_testing.engine.encoder_engine import reference_embedding
from baton_testing.processes.child_process import wait_for
from baton_testing.processes.deployment import Deployment, Shape
from baton_wire.models.pooling import Pooling, PoolingSpec

pytestmark = pytest.mark.processes

TEXTS = ["What is a rainbow?", "a", "The baton is handed over. " * 20, "Grüße"]


@pytest.fixture(scope="module")
def shape() -> Shape:
    return Shape(prefill=2, decode=0, prefill_flags=("--tasks", "embed"))


def post(deployment: Deployment, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(
        f"{deployment.base_url}{path}",
        json.dumps({"model": "tiny", **body}).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as got:
            return got.status, json.load(got)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def vectors(deployment: Deployment, inputs: Any) -> list[list[float]]:
    status, got = post(deployment, "/v1/embeddings", input=inputs)
    assert status == 200, got
    return [entry["embedding"] for entry in got["data"]]


def test_vectors_are_those_of_transformers_and_the_same_in_any_company(deployment: Deployment) -> None:
    reference = AutoModelForCausalLM.from_pretrained(tiny_llama.FOLDER, dtype=torch.float32).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(tiny_llama.FOLDER)
    together = vectors(deployment, TEXTS)
    for text, vector in zip(TEXTS, together, strict=True):
        expected = reference_embedding(reference, tokenizer(text).input_ids, PoolingSpec(Pooling.LAST))
        torch.testing.assert_close(torch.tensor(vector), expected, rtol=0, atol=1e-5)
    assert [vectors(deployment, text)[0] for text in TEXTS] == together
    with ThreadPoolExecutor(4) as pool:
        shuffled = list(pool.map(lambda number: vectors(deployment, [TEXTS[number], "x" * (number + 1)])[0], range(4)))
    assert shuffled == together


def test_chat_is_refused_by_name(deployment: Deployment) -> None:
    status, got = post(deployment, "/v1/chat/completions", messages=[{"role": "user", "content": "Hello"}])
    assert (status, got["error"]["code"], got["error"]["param"]) == (400, "task_not_served", "model")


def test_a_killed_worker_costs_no_request(deployment: Deployment) -> None:
    inputs = [f"{text} {number}" for number in range(60) for text in TEXTS]
    expected = vectors(deployment, inputs)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(vectors, deployment, inputs)
        first, second = deployment.of_role("prefill")
        wait_for(lambda: (first.state() or {}).get("waiting") or asked.done() or None, "prompts at the worker", 60)
        first.child.send(signal.SIGKILL)
        assert asked.result(timeout=120) == expected
    wait_for(lambda: second.state()["running"] == 0 or None, "nothing to be left running", 60)
    state = second.state()
    assert state["blocks_free"] == state["blocks_total"], Path(deployment.folder)
