"""Libraries that ask for embeddings and rankings, against `baton up` of a model that only embeds.

What they read is compared with transformers, so that a library that reads a vector wrongly shows. The rerank paths of
Cohere and Jina are asked as their SDKs ask.
"""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from e2e.clients.environment import EMBEDDINGS
from e2e.clients.runs import Clients, installed
from transformers import AutoModelForCausalLM, AutoTokenizer

from baton_testing.engine import tiny_llama
from baton_testing.engine.encoder_engine import reference_embedding
from baton_testing.engine.encoder_folders import PROMPTS, write_pooling
from baton_testing.processes.baton_up import Up, manifest
from baton_wire.models.pooling import Pooling, PoolingSpec

TEXTS = ["What is a rainbow?", "The baton is handed over.", "Grüße aus Köln"]
MEAN = PoolingSpec(Pooling.MEAN, is_normalised=True, is_stated=True)
LIMIT = 1e-5


def folder_of(directory: Path) -> Path:
    """The tiny model in a folder as sentence-transformers writes it."""
    model = directory / "model"
    shutil.copytree(tiny_llama.FOLDER, model)
    width = json.loads((model / "config.json").read_text())["hidden_size"]
    write_pooling(model, Pooling.MEAN, width)
    return model


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    python = installed(EMBEDDINGS)
    folder = tmp_path_factory.mktemp("embeddings")
    served = {"source": f"file://{folder_of(folder)}", "servedName": "tiny", "maxContextTokens": 512}
    raw = manifest("embeds", model=served | {"tasks": ["Embed"]})
    del raw["spec"]["decode"]
    with Up(folder, raw) as up:
        yield Clients(python, up.await_ready(), folder)


@pytest.fixture(scope="module")
def expected() -> list[torch.Tensor]:
    model = AutoModelForCausalLM.from_pretrained(tiny_llama.FOLDER, dtype=torch.float32).eval()
    return [reference_embedding(model, ids, MEAN) for ids in token_ids()]


def token_ids() -> list[list[int]]:
    tokenizer: Any = AutoTokenizer.from_pretrained(tiny_llama.FOLDER)
    return [tokenizer(text).input_ids for text in TEXTS]


def assert_close(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(torch.tensor(got), torch.as_tensor(wanted), rtol=0, atol=LIMIT)


@pytest.mark.parametrize("name", ["embed_openai", "embed_langchain", "embed_llama_index", "embed_litellm"])
def test_a_library_reads_the_vectors_of_transformers(
    embeddings: Clients, expected: list[torch.Tensor], name: str
) -> None:
    outcome = embeddings.program(name, json.dumps(TEXTS), json.dumps(token_ids()))
    assert_close(outcome["vectors"], torch.stack(expected))
    assert_close(outcome["query"], expected[0])
    if name == "embed_openai":
        assert_close(outcome["ids"], torch.stack(expected))
        assert_close(outcome["short"], torch.nn.functional.normalize(expected[0][:8], dim=0))
        assert outcome["tokens"] == sum(map(len, token_ids()))
    if name == "embed_litellm":
        for provider in ("hosted_vllm", "jina_ai", "cohere"):
            read = {int(place): score for place, score in outcome[provider].items()}
            assert read == pytest.approx(similarities_of_ranking(expected), abs=LIMIT)


def similarities_of_ranking(expected: list[torch.Tensor]) -> dict[int, float]:
    """The scores of TEXTS for the first of them as the query, which the model's prompt `query` precedes."""
    model = AutoModelForCausalLM.from_pretrained(tiny_llama.FOLDER, dtype=torch.float32).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(tiny_llama.FOLDER)
    query = reference_embedding(model, tokenizer(PROMPTS["query"] + TEXTS[0]).input_ids, MEAN)
    return {place: float(query @ vector) for place, vector in enumerate(expected)}


def post(endpoint: str, path: str, body: dict[str, Any], **headers: str) -> Any:
    request = urllib.request.Request(
        f"{endpoint}{path}", json.dumps(body).encode(), {"Content-Type": "application/json", **headers}
    )
    with urllib.request.urlopen(request, timeout=60) as got:
        return json.load(got)


def test_cohere_and_jina_read_the_same_ranking(embeddings: Clients, expected: list[torch.Tensor]) -> None:
    cohere = {"X-Client-Name": "python", "X-Fern-SDK-Name": "cohere", "Authorization": "Bearer unused"}
    body = {"model": "tiny", "query": TEXTS[0], "documents": TEXTS}
    asked = {
        "/v2/rerank": post(embeddings.endpoint, "/v2/rerank", {**body, "top_n": 2}, **cohere),
        "/v1/rerank": post(embeddings.endpoint, "/v1/rerank", {**body, "return_documents": True}, **cohere),
        "/rerank": post(embeddings.endpoint, "/rerank", {**body, "top_n": 3, "return_documents": False}),
    }
    scores = similarities_of_ranking(expected)
    order = sorted(scores, key=lambda place: -scores[place])
    for path, count in (("/v2/rerank", 2), ("/v1/rerank", 3), ("/rerank", 3)):
        results = asked[path]["results"]
        assert [entry["index"] for entry in results] == order[:count]
        assert [entry["relevance_score"] for entry in results] == pytest.approx(
            [scores[place] for place in order[:count]], abs=LIMIT
        )
        assert asked[path]["id"]
    assert [entry["document"]["text"] for entry in asked["/v1/rerank"]["results"]] == [TEXTS[place] for place in order]
    assert not any("document" in entry for entry in (*asked["/v2/rerank"]["results"], *asked["/rerank"]["results"]))
    assert asked["/rerank"]["usage"]["total_tokens"] > 0
