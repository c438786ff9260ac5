"""A Qwen3-Reranker in its published layout scores as the snippet in its documentation does."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from baton_control.spec.served_model import ModelTask
from baton_engine.model.servable import servable_model
from baton_local.fetching.default_deployment import detect_tasks
from baton_testing.engine.published_reranker import WEB_SEARCH, write_reranker
from baton_testing.processes.deployment import Deployment, Shape
from baton_wire.models.errors import ModelConfigError

pytestmark = pytest.mark.processes

QUERY = "What is the capital of China?"
DOCUMENTS = [
    "The capital of China is Beijing.",
    "Gravity is a force that attracts two bodies towards each other. " * 5,
    "x",
    "  spaces first, Grüße, 東京\n\n",
]
LIMIT = 1e-5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("published") / "model"
    write_reranker(directory)
    return directory


@pytest.fixture(scope="module")
def shape(folder: Path) -> Shape:
    return Shape(prefill=1, decode=0, model=folder, prefill_flags=("--tasks", "rerank"))


def documented_scores(folder: Path, instruction: str) -> list[float]:
    """The probabilities as the model's page computes them with transformers: three parts, padded on the left."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    before = (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    )
    after = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    first, last = (tokenizer.encode(text, add_special_tokens=False) for text in (before, after))
    pairs = [f"<Instruct>: {instruction}\n<Query>: {QUERY}\n<Document>: {document}" for document in DOCUMENTS]
    bodies = tokenizer(pairs, padding=False, truncation="longest_first", return_attention_mask=False, max_length=2_000)
    prompts = {"input_ids": [first + ids + last for ids in bodies["input_ids"]]}
    inputs = tokenizer.pad(prompts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        logits = model(**inputs).logits[:, -1, :]
    no, yes = (logits[:, tokenizer.convert_tokens_to_ids(word)] for word in ("no", "yes"))
    scores = torch.nn.functional.log_softmax(torch.stack([no, yes], dim=1), dim=1)[:, 1].exp()
    return [float(score) for score in scores]


def post(deployment: Deployment, path: str, **body: Any) -> Any:
    request = urllib.request.Request(
        f"{deployment.base_url}{path}", json.dumps({"model": "tiny", **body}).encode(),
        {"Content-Type": "application/json"},
    )  # fmt: skip
    with urllib.request.urlopen(request, timeout=120) as got:
        return json.load(got)


@pytest.mark.parametrize("instruction", [None, "Find passages about gravity"])
def test_scores_are_those_of_the_documented_snippet(
    deployment: Deployment, folder: Path, instruction: str | None
) -> None:
    expected = documented_scores(folder, instruction or WEB_SEARCH)
    asked = {} if instruction is None else {"instruction": instruction}
    got = post(deployment, "/score", text_1=QUERY, text_2=DOCUMENTS, **asked)
    assert [entry["score"] for entry in got["data"]] == pytest.approx(expected, abs=LIMIT)
    ranked = post(deployment, "/rerank", query=QUERY, documents=DOCUMENTS, **asked)["results"]
    assert {entry["index"]: entry["relevance_score"] for entry in ranked} == pytest.approx(
        dict(enumerate(expected)), abs=LIMIT
    )
    assert [entry["index"] for entry in ranked] == sorted(range(len(expected)), key=lambda place: -expected[place])


def test_baton_up_knows_a_reranker_by_its_files_or_by_its_name(folder: Path, tmp_path: Path) -> None:
    assert detect_tasks(servable_model(folder), "ranks") == (ModelTask.RERANK,)
    write_reranker(tmp_path, has_modules=False)
    assert detect_tasks(servable_model(tmp_path), "Qwen3-Reranker-0.6B") == (ModelTask.RERANK,)


def test_answers_that_are_not_the_tokens_yes_and_no_are_refused_by_their_field(tmp_path: Path) -> None:
    write_reranker(tmp_path)
    path = tmp_path / "1_LogitScore" / "config.json"
    ids = json.loads(path.read_text())
    path.write_text(json.dumps({**ids, "true_token_id": ids["false_token_id"]}))
    with pytest.raises(ModelConfigError, match=f"true_token_id: .* allowed: {ids['true_token_id']}, the id of 'yes'"):
        servable_model(tmp_path)
