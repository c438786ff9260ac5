"""A chat whose KV travels through NIXL: a prefill worker, a decode worker and a gateway with `--transport ucx`."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from baton_testing.engine import tiny_llama
from baton_testing.kv_transfer.nixl import NEEDS_UCX
from baton_testing.processes.child_process import wait_for
from baton_testing.processes.deployment import MIB, Deployment, Shape

pytestmark = [pytest.mark.processes, NEEDS_UCX]


@pytest.fixture(scope="module")
def shape() -> Shape:
    flags = ("--dtype", "float32", "--kv-cache-bytes", str(24 * MIB), "--transport", "ucx", "--min-bandwidth", "1e15")
    return Shape(worker_flags=flags, gateway_flags=("--disaggregation", "always"))


def test_the_trained_text_comes_from_kv_that_ucx_moved(deployment: Deployment, client: openai.OpenAI) -> None:
    question, answer = tiny_llama.GREETING
    messages: Any = [{"role": "user", "content": question}]
    reply = client.chat.completions.create(model="tiny", messages=messages, temperature=0)
    assert reply.choices[0].message.content == answer
    (prefill,), (decode,) = deployment.of_role("prefill"), deployment.of_role("decode")

    def counted() -> tuple[int, int] | None:
        sent, received = (worker.state()["transfer"] for worker in (prefill, decode))
        moved = sent["kv_bytes_sent"], received["kv_bytes_received"]
        return moved if moved[0] and moved[0] == moved[1] else None

    wait_for(counted, "both ends to have counted the same bytes", 60.0)
    assert decode.state()["transfer"]["transport"] == "ucx"

    def measured() -> dict[str, Any] | None:
        (link,) = prefill.state()["transfer"]["links"]
        return link if link["bytes_per_s"] is not None else None

    link = wait_for(measured, "the link to have been measured", 60.0)
    assert link["transport"] == "ucx"
    assert link["bytes_per_s"] > 0
    assert link["below_minimum"] is True
    assert 'baton_kv_link_bytes_per_second{role="prefill",transport="ucx"}' in prefill.metrics()
