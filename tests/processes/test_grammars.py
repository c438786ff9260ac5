"""Answers that follow grammars through real workers, asked for as a gateway asks: apart, together, continued."""

from __future__ import annotations

import secrets
from typing import Any

import jsonschema
import msgspec
import pytest

from baton_testing.engine.grammars import END, of_schema, sampling_of, token_bytes
from baton_testing.engine.structured_engine import structured_engine, structured_spec
from baton_testing.engine.tiny_llama import chat_ids
from baton_testing.processes.deployment import Deployment
from baton_testing.wire.raw_peer import GatewayPeer, gateway_peer
from baton_wire.messages.gateway_link import LegFailed, Prefill, Reserve, Tokens
from baton_wire.messages.values import Address, Grammar, PeerRef, Reason, SamplingParams, Thought, pack_ids

pytestmark = pytest.mark.processes

PROMPT = chat_ids("Tell me about owls.")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["owl", "fox"]},
        "words": {
            "type": "array",
            "items": {"type": "string", "pattern": "^[a-z]{1,8}$"},
            "minItems": 2,
            "maxItems": 4,
        },
        "count": {"type": "integer", "minimum": 0, "maximum": 999},
    },
    "required": ["kind", "words", "count"],
    "additionalProperties": False,
}
THOUGHT = Thought(end=(2,), max_tokens=5)
SAMPLINGS = [
    sampling_of(of_schema(SCHEMA, head=""), thought, temperature=temperature, seed=5)
    for thought in (None, THOUGHT)
    for temperature in (0.0, 1.0)
]


def expected(sampling: SamplingParams) -> list[int]:
    """The answer of an engine in this process."""
    with structured_engine() as engine:
        return engine.run(structured_spec(1, PROMPT, sampling))[1, 0]


def common(sampling: SamplingParams, forced: list[int]) -> dict[str, Any]:
    ids = pack_ids([*PROMPT, *forced])
    asked = {"request": secrets.token_bytes(16), "attempt": 1, "tokens": ids, "prompt_tokens": len(PROMPT)}
    return {**asked, "choices": (0,), "sampling": sampling, "timeout_s": 30.0, "salt": secrets.token_hex(4)}


async def read_answer(peer: GatewayPeer, first_index: int = 0) -> list[int]:
    ids: list[int] = []
    while True:
        for entry in (await peer.hear(Tokens)).entries:
            assert entry.first_index == first_index + len(ids)
            ids += entry.ids
            if entry.finish is not None:
                return ids


@pytest.mark.parametrize("sampling", SAMPLINGS)
async def test_apart_and_continued_from_any_token_an_answer_is_the_same(
    deployment: Deployment, sampling: SamplingParams
) -> None:
    whole = expected(sampling)
    prefill, decode = (deployment.of_role(role)[0] for role in ("prefill", "decode"))
    async with (
        gateway_peer(prefill.base_url, deployment.keys) as to_prefill,
        gateway_peer(decode.base_url, deployment.keys) as to_decode,
    ):
        introduced, landing = await to_prefill.hello(), await to_decode.hello()
        assert landing.pair_port is not None
        target = PeerRef(Address("127.0.0.1", landing.pair_port), landing.epoch)
        fields = common(sampling, [])
        await to_decode.tell(Reserve(**fields, prefill_epoch=introduced.epoch))
        await to_prefill.tell(Prefill(**fields, decode=target))
        first = await to_prefill.hear(Tokens)
        assert first.entries[0].ids == (whole[0],)
        assert await read_answer(to_decode) == whole
        for cut in range(1, len(whole), 4):
            await to_decode.tell(Reserve(**common(sampling, whole[:cut]), prefill_epoch=None))
            assert await read_answer(to_decode, cut) == whole[cut:]
    answer = whole[whole.index(2) + 1 :] if sampling.thought else whole
    assert answer[-1] == END
    jsonschema.validate(msgspec.json.decode(b"".join(token_bytes()[token] for token in answer[:-1])), SCHEMA)


async def test_a_grammar_that_does_not_compile_ends_its_request_alone(deployment: Deployment) -> None:
    decode = deployment.of_role("decode")[0]
    async with gateway_peer(decode.base_url, deployment.keys) as peer:
        await peer.hello()
        await peer.tell(Reserve(**common(sampling_of(Grammar("{")), []), prefill_epoch=None))
        failed = await peer.hear(LegFailed)
        assert failed.reason is Reason.GRAMMAR
        await peer.tell(Reserve(**common(SAMPLINGS[0], []), prefill_epoch=None))
        assert await read_answer(peer) == expected(SAMPLINGS[0])
    text = decode.metrics()
    for name in ("baton_grammar_compile_seconds_count", "baton_grammar_mask_seconds_count"):
        [line] = [line for line in text.splitlines() if line.startswith(name)]
        assert float(line.split()[-1]) > 0
    deployment.await_idle()
