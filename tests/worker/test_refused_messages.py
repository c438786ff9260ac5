"""A gateway's messages that do not fit their types, as a worker takes them; and what a worker must not say."""

from __future__ import annotations

import math
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import pytest
from aiohttp import web

from baton_testing.kv_transfer.builders import fingerprint
from baton_testing.wire.raw_peer import GatewayPeer, gateway_peer
from baton_wire.errors import BadFieldsError
from baton_wire.keys import KeyDirectory, write_new_key
from baton_wire.messages.codec import decode, encode
from baton_wire.messages.flood import MOST_BAD_MESSAGES
from baton_wire.messages.gateway_link import MAX_ENTRIES, Hello, LegFailed, Prefill, ToGateway, Tokens, WorkerState
from baton_wire.messages.packed_logprobs import pack_logprobs
from baton_wire.messages.values import (
    MAX_CONTEXT_TOKENS,
    Address,
    Message,
    PeerRef,
    Reason,
    Role,
    SamplingParams,
    TokenEntry,
    TokenLogprob,
    num_packed,
    pack_ids,
)
from baton_wire.session import AlteredFrames
from baton_worker.errors import ConfigError
from baton_worker.reporting.reports import token_messages
from baton_worker.serving.gateway_links import GatewayLink, GatewayLinks
from baton_worker.serving.lifecycle import check_hello

EPOCH = secrets.token_bytes(16)
HELLO = Hello(Role.PREFILL, EPOCH, fingerprint(), "t", None, "tiny", 99, 99, 4, 8, 16, 9, "0" * 64, 1)
PEER = PeerRef(Address("127.0.0.1", 1), bytes(16))


class Taken:
    """Records the messages that a service gets."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.lost = 0

    def handle(self, link: GatewayLink, message: Message) -> None:
        self.messages.append(message)
        assert isinstance(message, Prefill)
        link.send(LegFailed(message.request, message.attempt, Reason.NO_CAPACITY))

    def link_lost(self, link: GatewayLink) -> None:
        self.lost += 1

    def state(self) -> WorkerState:
        return WorkerState(False, 0, 0, 0, 9, 9, 1, 0.01)


@pytest.fixture
def taken() -> Taken:
    return Taken()


@pytest.fixture
async def peer(tmp_path: Path, taken: Taken) -> AsyncIterator[GatewayPeer]:
    write_new_key(tmp_path, "k1")
    links = GatewayLinks(lambda: HELLO, b"x", KeyDirectory(tmp_path), taken, AlteredFrames())
    app = web.Application()
    app.router.add_get("/link", links.accept)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with gateway_peer(f"http://127.0.0.1:{runner.addresses[0][1]}", tmp_path) as peer:
        await peer.hello()
        yield peer
    await runner.cleanup()


def prefill(tokens: int = 2, **sampling: Any) -> Prefill:
    ids = pack_ids([7] * tokens)
    what = SamplingParams(max_tokens=5, **sampling)
    return Prefill(secrets.token_bytes(16), 1, ids, tokens, (0,), what, 30.0, "", PEER)


def changed(message: Prefill, name: str, value: Any) -> bytes:
    """The message with a field, or one of its sampling options, that its type has no room for."""
    raw = list(msgspec.to_builtins(message, builtin_types=(bytes,)))
    if name in SamplingParams.__struct_fields__:
        raw[6] = list(raw[6])
        raw[6][SamplingParams.__struct_fields__.index(name)] = value
    else:
        raw[1 + Prefill.__struct_fields__.index(name)] = value
    frame: bytes = msgpack.packb(raw, use_bin_type=True)
    return frame


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop_token_ids", [1 << 24]),
        ("stop_token_ids", [1] * 257),
        ("logit_bias", [[1, 1e9]]),
        ("temperature", math.nan),
        ("seed", 1 << 63),
        ("salt", "x" * 129),
        ("timeout_s", 0.0),
        ("choices", []),
        ("decode", None),
        ("tokens", bytes(4)),
    ],
)
async def test_a_field_that_does_not_fit_ends_its_request_and_not_the_link(
    peer: GatewayPeer, taken: Taken, name: str, value: Any
) -> None:
    bad, good = prefill(), prefill()
    frame = changed(bad, name, value)
    await peer.send(frame)
    await peer.tell(good)
    first = await peer.hear(LegFailed)
    if name != "tokens":  # these bytes are whole ids: what they say is for the intake to judge
        assert (first.request, first.attempt, first.reason) == (bad.request, 1, Reason.BAD_REQUEST)
        assert name in first.detail or "sampling" in first.detail
        first = await peer.hear(LegFailed)
        assert first.request == good.request
    assert taken.lost == 0


async def test_too_many_bad_messages_end_the_link_by_name(
    peer: GatewayPeer, taken: Taken, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(MOST_BAD_MESSAGES + 1):
        await peer.send(changed(prefill(), "seed", -1))
    assert await peer.is_closed()
    assert "more than 64 bad messages within 10 s" in caplog.text
    assert taken.lost == 1


async def test_a_prompt_of_a_million_tokens_comes_in_parts_and_whole(peer: GatewayPeer, taken: Taken) -> None:
    longest = prefill(MAX_CONTEXT_TOKENS)
    await peer.tell(longest)
    assert (await peer.hear(LegFailed)).request == longest.request
    (message,) = taken.messages
    assert isinstance(message, Prefill)
    assert num_packed(message.tokens) == MAX_CONTEXT_TOKENS


def test_a_step_of_many_sequences_goes_out_in_messages_that_fit() -> None:
    top = tuple((token, -1.0) for token in range(20))
    logprobs = pack_logprobs((TokenLogprob(-1.0, top),) * 64)
    entries = [TokenEntry(bytes(16), 1, 0, 0, tuple(range(64)), logprobs)] * 100
    plain = [TokenEntry(bytes(16), 1, 0, 0, (1,))] * (2 * MAX_ENTRIES + 1)
    for batch in (entries, plain, entries[:1], plain[:1]):
        messages = list(token_messages(3, batch))
        assert [entry for message in messages for entry in message.entries] == batch
        for message in messages:
            assert decode(encode(message), ToGateway) == message


def test_a_message_that_the_gateway_would_refuse_is_not_queued() -> None:
    link = GatewayLink(EPOCH, None)  # type: ignore[arg-type]
    with pytest.raises(BadFieldsError, match="entries"):
        link.send(Tokens(1, (TokenEntry(bytes(16), 1, 0, -1, (1,)),)))
    assert not link._frames


@pytest.mark.parametrize(
    ("field", "value"), [("max_context_tokens", MAX_CONTEXT_TOKENS + 1), ("vocab_size", 1 << 25), ("served_name", "")]
)
def test_a_worker_that_every_gateway_would_refuse_does_not_start(field: str, value: Any) -> None:
    check_hello(HELLO)
    with pytest.raises(ConfigError, match=field):
        check_hello(msgspec.structs.replace(HELLO, **{field: value}))
