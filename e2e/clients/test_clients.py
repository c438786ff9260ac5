"""Clients that people use, run from their own packages against `baton up`. `make test-clients` installs and runs them.

Answers are compared with those of transformers, so that a client that reads an answer wrongly shows.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from e2e.clients.runs import Clients

from baton_testing.engine import tiny_llama

QUESTION = "What is a KV cache?"
CHOICES = (" It keeps keys and values.", " Zebra or tomorrow.")


def answer() -> str:
    return tiny_llama.text_of(tiny_llama.greedy(tiny_llama.chat_ids(QUESTION), 400).ids)


@pytest.mark.parametrize(
    "name",
    [
        "openai_client",
        "responses_client",
        "anthropic_client",
        "litellm_client",
        "langchain_client",
        "llama_index_client",
    ],
)
def test_a_library_reads_the_same_answer_whole_and_streamed(clients: Clients, name: str) -> None:
    outcome = clients.program(name, QUESTION)
    assert outcome["whole"] == outcome["streamed"] == answer()
    others = {key: value for key, value in outcome.items() if key not in ("whole", "streamed")}
    assert all(others.values()), others


def test_libraries_get_answers_in_the_shape_of_a_type(clients: Clients) -> None:
    outcome = clients.program("structured_clients", QUESTION)
    assert outcome == dict.fromkeys(("parsed", "streamed", "responses", "langchain", "with_instructor"), True)


def test_libraries_get_the_calls_that_they_demand(with_tool_template: Clients) -> None:
    outcome = with_tool_template.program("tool_clients", QUESTION)
    ways = ("langchain", "langchain_structured", "with_instructor", "parsed", "streamed", "responses")
    assert outcome == dict.fromkeys(ways, True)


def test_anthropics_client_calls_tools_and_goes_on_with_what_it_began(with_tool_template: Clients) -> None:
    outcome = with_tool_template.program("anthropic_tools", QUESTION)
    ways = ("named", "any_of_them", "none", "auto", "streamed", "answered", "begun")
    assert outcome == dict.fromkeys(ways, True)


def test_twenty_rounds_of_calls_come_to_their_end(with_tool_template: Clients) -> None:
    assert with_tool_template.program("tool_rounds", QUESTION, "20") == {"openai": 20, "anthropic": 20}


def test_guidellm_measures_with_its_own_probe_and_streams(clients: Clients) -> None:
    report = clients.folder / "guidellm.json"
    clients.tool(
        "guidellm", "run", "--disable-console-interactive",
        "--backend", f"kind=openai_http,target={clients.endpoint},model=tiny",
        "--profile", "kind=concurrent,streams=2", "--constraint", "kind=max_requests,count=8",
        "--tokenizer", f"kind=huggingface_auto,model={tiny_llama.FOLDER}",
        "--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=16",
        "--output", f"kind=json,path={report}",
    )  # fmt: skip
    [benchmark] = json.loads(report.read_text(encoding="utf-8"))["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (8, 0), totals


@pytest.mark.parametrize(("backend", "path"), [("openai-chat", "/v1/chat/completions"), ("openai", "/v1/completions")])
def test_vllms_benchmark_completes_every_request(clients: Clients, backend: str, path: str) -> None:
    outcome = clients.program(
        "vllm_benchmark", "--backend", backend, "--endpoint", path, "--model", "tiny",
        "--tokenizer", str(tiny_llama.FOLDER), "--dataset-name", "random", "--random-input-len", "32",
        "--random-output-len", "16", "--num-prompts", "12", "--ignore-eos",
    )  # fmt: skip
    assert outcome == {"completed": 12, "total_output_tokens": 12 * 16, "failed": 0}


def test_lm_eval_scores_and_generates_as_transformers_would(clients: Clients) -> None:
    results = _lm_eval(clients)
    for entry in results["scored"]:
        values = [float(response[0]) for response in entry["filtered_resps"]]
        for value, choice in zip(values, CHOICES, strict=True):
            assert math.isclose(value, _loglikelihood(QUESTION, choice), abs_tol=1e-3)
    [generated] = results["generated"]
    expected = tiny_llama.text_of(tiny_llama.greedy(_ids(QUESTION), 12).ids)
    assert generated["filtered_resps"] == [expected]


def _loglikelihood(context: str, continuation: str) -> float:
    """As lm-eval counts it: the sum over the tokens that the continuation adds."""
    return sum(tiny_llama.prompt_logprobs(_ids(context + continuation))[len(_ids(context)) - 1 :])


def _ids(text: str) -> tuple[int, ...]:
    """As lm-eval tokenises for a server that answers `/tokenizer_info`: with the token of a text's beginning."""
    return tuple(tiny_llama.tokenizer()(text).input_ids)


def _lm_eval(clients: Clients) -> dict[str, list[dict[str, Any]]]:
    """Samples of one task of each kind, both made here: nothing is downloaded."""
    tasks = clients.folder / "tasks"
    tasks.mkdir()
    (tasks / "questions.jsonl").write_text(
        json.dumps({"question": QUESTION, "choices": CHOICES, "answer": 0}) + "\n", encoding="utf-8"
    )
    usual = {
        "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(tasks / "questions.jsonl")}},
        "test_split": "test", "doc_to_text": "{{question}}",
    }  # fmt: skip
    scored = {
        "task": "scored", "output_type": "multiple_choice", "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}", "target_delimiter": "", "metric_list": [{"metric": "acc"}],
    }  # fmt: skip
    generated = {
        "task": "generated", "output_type": "generate_until", "doc_to_target": "{{choices[0]}}",
        "generation_kwargs": {"max_gen_toks": 12, "do_sample": False, "until": ["\n\n\n"]},
        "metric_list": [{"metric": "exact_match"}],
    }  # fmt: skip
    for task in (scored, generated):
        (tasks / f"{task['task']}.yaml").write_text(json.dumps(usual | task), encoding="utf-8")  # JSON is YAML
    output = clients.folder / "lm_eval"
    clients.tool(
        "lm_eval", "run", "--model", "local-completions",
        "--model_args", f"model=tiny,base_url={clients.endpoint}/v1/completions,tokenizer={tiny_llama.FOLDER}",
        "--tasks", "scored,generated", "--include_path", str(tasks), "--output_path", str(output), "--log_samples",
    )  # fmt: skip
    return {name: _samples(output, name) for name in ("scored", "generated")}


def _samples(output: Path, task: str) -> list[dict[str, Any]]:
    [path] = output.rglob(f"samples_{task}_*.jsonl")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
