"""Prefill workers whose layers are shared out as stages: the same answers, and a worker that ends when it loses one."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jsonschema
import openai
import psutil
import pytest

from baton_testing.engine import tiny_llama
from baton_testing.processes.baton_up import Up, manifest
from baton_testing.processes.child_process import orphans_of
from baton_testing.processes.deployment import Deployment, Shape
from baton_testing.processes.prepared import Prepared

pytestmark = pytest.mark.processes

QUESTIONS = tiny_llama.LONG_ANSWERS[:6]
MAX_TOKENS = 96
STAGES = ("--pipeline-parallel", "2", "--max-step-tokens", "16")
"""Steps of few tokens: each prompt takes several, which are in different stages at once."""
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["owl", "fox"]}, "count": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["kind", "count"],
    "additionalProperties": False,
}
ENDS_WITHIN_S = 60.0
"""Seconds in which a worker surely ended on a machine that is busy; it takes three at most."""


@pytest.fixture(
    scope="module",
    params=[Shape(prefill_flags=STAGES), Shape(prefill_flags=STAGES, decode_flags=("--tensor-parallel", "2"))],
    ids=["stages", "stages-to-ranks"],
)
def shape(request: pytest.FixtureRequest) -> Shape:
    staged: Shape = request.param
    return staged


def ask(client: openai.OpenAI, question: str) -> str:
    reply = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": question}], temperature=0, max_tokens=MAX_TOKENS
    )
    return reply.choices[0].message.content or ""


def test_answers_are_those_of_one_process_and_every_layer_arrives(
    deployment: Deployment, client: openai.OpenAI
) -> None:
    with ThreadPoolExecutor(len(QUESTIONS)) as pool:
        texts = list(pool.map(lambda question: ask(client, question), QUESTIONS))
    for question, text in zip(QUESTIONS, texts, strict=True):
        assert text.startswith(tiny_llama.sure_text(question, MAX_TOKENS))
    (prefill,), (decode,) = deployment.of_role("prefill"), deployment.of_role("decode")
    assert [worker.state()["transfer"]["handovers"] for worker in (prefill, decode)] == [len(QUESTIONS)] * 2


def test_choices_schemas_and_log_probabilities_come_from_the_last_stage(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": QUESTIONS[0]}]
    greedy = {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 24}
    reply = client.chat.completions.create(**greedy, n=3, logprobs=True, top_logprobs=2)  # type: ignore[call-overload]
    texts = {choice.message.content for choice in reply.choices}
    assert len(reply.choices) == 3
    assert len(texts) == 1
    assert all(len(choice.logprobs.content) == 24 for choice in reply.choices)
    reply = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "Tell me about owls."}],
        temperature=1.0,
        seed=4,
        response_format={"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA, "strict": True}},
    )
    jsonschema.validate(json.loads(reply.choices[0].message.content or ""), SCHEMA)


def test_prompts_are_not_embedded_by_stages(client: openai.OpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        client.embeddings.create(model="tiny", input="owls")
    assert refused.value.status_code in (400, 404)


def test_a_worker_that_loses_a_stage_ends_and_names_it(deployment: Deployment) -> None:
    (worker,) = deployment.of_role("prefill")
    process = psutil.Process(worker.child.pid)
    stages = sorted((c for c in process.children() if "rank_main" in " ".join(c.cmdline())), key=lambda c: c.pid)
    assert len(stages) == 2
    os.kill(stages[0].pid, signal.SIGKILL)
    assert orphans_of([process, *stages], ENDS_WITHIN_S) == []
    assert f"stopped because a rank was lost: rank 0 (process {stages[0].pid})" in worker.child.output()


def test_stages_of_a_manifest_answer_and_nothing_is_left_of_them(tmp_path: Path, prepared: Prepared) -> None:
    usual = manifest("staged")
    usual["spec"]["prefill"] = usual["spec"]["prefill"] | {"arguments": [{"name": "pipeline-parallel", "value": "2"}]}
    with Up(tmp_path, usual, starts=prepared) as running:
        running.await_ready()
        family = running.child.family()
        assert sum("rank_main" in " ".join(process.cmdline()) for process in family) == 2
        with openai.OpenAI(base_url=f"{running.endpoint}/v1", api_key="unused", max_retries=0, timeout=120) as client:
            assert ask(client, QUESTIONS[0]).startswith(tiny_llama.sure_text(QUESTIONS[0], MAX_TOKENS))
    assert orphans_of(family) == []
