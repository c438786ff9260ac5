"""The line of the null workers that campaigns use is as fair as a real worker's: what they show is the gateway's."""

from __future__ import annotations

from typing import Any, cast

from baton_testing.gateway.fake_worker import PromptLine
from baton_wire.messages.gateway_link import Prefill
from baton_wire.messages.values import Address, PeerRef, SamplingParams, pack_ids

LINK = cast(Any, None)
MANY, FEW = b"m" * 16, b"f" * 16


def prompt(number: int, flow: bytes, tokens: int = 10) -> Prefill:
    decode = PeerRef(Address("127.0.0.1", 1), b"d" * 16)
    sampling = SamplingParams(max_tokens=1)
    packed = pack_ids([7] * tokens)
    return Prefill(number.to_bytes(16), 1, packed, tokens, (0,), sampling, 1.0, "", decode, flow)


async def test_a_prompt_of_another_flow_goes_before_those_that_a_flow_has_waiting() -> None:
    line = PromptLine()
    for number in range(200):
        line.add(LINK, prompt(number, MANY))
    line.add(LINK, prompt(1_000, FEW))
    order = [int.from_bytes((await line.take())[1].request) for _ in range(201)]
    assert order.index(1_000) == 1
    assert [number for number in order if number < 200] == list(range(200))


async def test_a_cancelled_prompt_leaves_the_line() -> None:
    line = PromptLine()
    for number in range(3):
        line.add(LINK, prompt(number, MANY))
    line.cancel(((1).to_bytes(16), 1))
    line.cancel(((9).to_bytes(16), 1))
    assert [int.from_bytes((await line.take())[1].request) for _ in range(2)] == [0, 2]
