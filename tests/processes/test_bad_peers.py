"""Bad input over the internal links: no peer can hurt a worker or leak a block, with or without the key."""

from __future__ import annotations

import contextlib
import secrets
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgpack
import msgspec
import openai
import pytest

from baton_testing.engine import tiny_llama
from baton_testing.processes.child_process import wait_for
from baton_testing.processes.deployment import Deployment
from baton_testing.wire.raw_peer import gateway_peer, hangs_up, pair_connection, shake_pair_hands
from baton_wire.errors import AuthenticationError
from baton_wire.handshake import LinkRole
from baton_wire.keys import write_new_key
from baton_wire.messages.codec import encode
from baton_wire.messages.gateway_link import Cancel, LegFailed, Prefill, Reserve
from baton_wire.messages.pair_link import PairHello
from baton_wire.messages.values import Address, PeerRef, Reason, Role, SamplingParams, pack_ids
from baton_wire.session import Session

pytestmark = pytest.mark.processes

NOBODY = PeerRef(Address("127.0.0.1", 1), bytes(16))


@pytest.fixture(autouse=True)
def the_service_still_serves(deployment: Deployment, client: openai.OpenAI) -> Iterator[None]:
    """After each case the blocks are back at the baseline and a good request is answered."""
    yield
    deployment.await_idle()
    question, answer = tiny_llama.GREETING
    reply = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": question}], temperature=0
    )
    assert reply.choices[0].message.content == answer


def common(ids: list[int]) -> dict[str, Any]:
    return {
        "request": secrets.token_bytes(16),
        "attempt": 1,
        "tokens": pack_ids(ids),
        "prompt_tokens": len(ids),
        "choices": (0,),
        "sampling": SamplingParams(max_tokens=8, temperature=0),
        "timeout_s": 30.0,
        "salt": "",
    }


def prefill(ids: list[int]) -> Prefill:
    return Prefill(**common(ids), decode=NOBODY)


def reserve(ids: list[int], **changed: Any) -> Reserve:
    return Reserve(**(common(ids) | {"prefill_epoch": None} | changed))


@pytest.fixture
def pair_port(deployment: Deployment) -> int:
    port = deployment.of_role("decode")[0].pair_port
    assert port is not None
    return port


BAD_FRAMES = {
    "bytes that are not msgpack": b"\xc1\xff\x00garbage",
    "an empty frame": b"",
    "an unknown message": msgpack.packb([99, 1, 2]),
    "a map": msgpack.packb({"tag": 18}),
    "an extension type": msgpack.packb([18, msgpack.ExtType(4, b"x"), 1, None]),
    "an array that claims four billion items": b"\xdd\xff\xff\xff\xff",
    "a frame over the cap": bytes(5 << 20),
    "deep nesting": b"\x91" * 100_000,
}
BAD_FIELDS = {
    "a field too few": msgpack.packb([18, bytes(16)]),
    "a field too many": msgpack.packb([6, 1, 2, 3]),
    "a request id of a wrong length": msgpack.packb([18, b"short", 1, None]),
    "a number where bytes belong": msgpack.packb([18, 7, 1, None]),
}


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("frame", BAD_FRAMES.values(), ids=BAD_FRAMES.keys())
async def test_a_bad_frame_of_a_gateway_closes_its_link(deployment: Deployment, role: str, frame: bytes) -> None:
    worker = deployment.of_role(role)[0]
    async with gateway_peer(worker.base_url, deployment.keys) as peer:
        await peer.hello()
        with contextlib.suppress(ConnectionError):  # the worker may hang up before it has read all of a long frame
            await peer.send(frame)
        assert await peer.is_closed()


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("frame", BAD_FIELDS.values(), ids=BAD_FIELDS.keys())
async def test_bad_fields_of_a_message_of_a_gateway_leave_its_link(
    deployment: Deployment, role: str, frame: bytes
) -> None:
    worker = deployment.of_role(role)[0]
    async with gateway_peer(worker.base_url, deployment.keys) as peer:
        await peer.hello()
        await peer.send(frame)
        message = reserve([5_000]) if role == "decode" else prefill([5_000])
        await peer.tell(message)
        assert (await peer.hear(LegFailed)).request == message.request


async def test_nothing_is_said_before_the_handshake(deployment: Deployment) -> None:
    async with gateway_peer(deployment.workers[0].base_url) as peer:
        await peer.send(b"let me in" * 20)
        assert await peer.is_closed()


async def test_text_instead_of_a_handshake_closes_the_link(deployment: Deployment) -> None:
    async with gateway_peer(deployment.workers[0].base_url) as peer:
        await peer.send_text("let me in")
        assert await peer.is_closed()


@pytest.mark.parametrize("key_id", ["test", "another"], ids=["the same key id", "another key id"])
async def test_a_gateway_with_a_wrong_key_is_refused(deployment: Deployment, tmp_path: Path, key_id: str) -> None:
    write_new_key(tmp_path, key_id)
    for worker in deployment.workers:
        async with gateway_peer(worker.base_url) as peer:
            with pytest.raises(AuthenticationError):
                await peer.shake_hands(tmp_path)


async def test_a_worker_is_no_gateway(deployment: Deployment) -> None:
    async with gateway_peer(deployment.workers[0].base_url) as peer:
        with pytest.raises(AuthenticationError):
            await peer.shake_hands(deployment.keys, LinkRole.PREFILL)


async def test_a_plain_request_to_the_link_is_refused(deployment: Deployment) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"{deployment.workers[0].base_url}/link") as response:
        assert response.status in (400, 426)


@pytest.mark.parametrize("key", [b"\xc3\xa9" * 12, b"A" * 23, b"*"], ids=["not ASCII", "no base64", "short"])
async def test_a_bad_upgrade_to_the_link_is_refused_without_a_word_in_the_log(
    deployment: Deployment, key: bytes
) -> None:
    worker = deployment.workers[0]
    async with pair_connection(worker.port) as connection:
        head = b"GET /link HTTP/1.1\r\nHost: w\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        await connection.send(head + b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + key + b"\r\n\r\n")
        assert await connection.receive(12) == b"HTTP/1.1 400"
    assert "Traceback" not in worker.child.output()


async def test_a_message_for_the_other_role_fails(deployment: Deployment) -> None:
    async with gateway_peer(deployment.of_role("prefill")[0].base_url, deployment.keys) as peer:
        await peer.tell(reserve([5, 6]))
        assert (await peer.hear(LegFailed)).reason is Reason.BAD_REQUEST
    async with gateway_peer(deployment.of_role("decode")[0].base_url, deployment.keys) as peer:
        await peer.tell(prefill([5, 6]))
        assert (await peer.hear(LegFailed)).reason is Reason.BAD_REQUEST


async def test_cancelling_what_nobody_knows_changes_nothing(deployment: Deployment) -> None:
    for worker in deployment.workers:
        async with gateway_peer(worker.base_url, deployment.keys) as peer:
            await peer.tell(Cancel(secrets.token_bytes(16), 1))
            message = reserve([5_000]) if worker.role == "decode" else prefill([5_000])
            await peer.tell(message)
            failed = await peer.hear(LegFailed)
            assert (failed.request, failed.attempt) == (message.request, message.attempt)
            assert failed.reason is Reason.BAD_REQUEST
            assert "vocabulary" in failed.detail


async def test_a_reservation_goes_with_the_gateway_that_made_it(deployment: Deployment) -> None:
    """A peer that reserves for a prefill worker that does not exist, and then hangs up, holds nothing afterwards."""
    decode = deployment.of_role("decode")[0]
    async with gateway_peer(decode.base_url, deployment.keys) as peer:
        await peer.hello()
        await peer.tell(reserve(list(range(300, 700)), prefill_epoch=secrets.token_bytes(16)))
        wait_for(lambda: deployment.occupied()[decode.child.name] > 0 or None, "the reservation", 20)


async def test_a_reservation_that_nobody_feeds_ends_by_its_deadline(deployment: Deployment) -> None:
    decode = deployment.of_role("decode")[0]
    async with gateway_peer(decode.base_url, deployment.keys) as peer:
        message = reserve([300, 301], prefill_epoch=secrets.token_bytes(16), timeout_s=0.5)
        await peer.tell(message)
        failed = await peer.hear(LegFailed)
        assert failed.request == message.request
        assert failed.reason in (Reason.DEADLINE, Reason.PEER_LOST)


async def test_garbage_on_the_pair_port_is_hung_up_on(pair_port: int) -> None:
    async with pair_connection(pair_port) as connection:
        await connection.send(b"GET / HTTP/1.1\r\n\r\n" * 40)
        assert await hangs_up(connection)


@pytest.mark.parametrize("key_id", ["test", "another"], ids=["the same key id", "another key id"])
async def test_a_prefill_worker_with_a_wrong_key_is_refused(pair_port: int, tmp_path: Path, key_id: str) -> None:
    write_new_key(tmp_path, key_id)
    async with pair_connection(pair_port) as connection:
        with pytest.raises(AuthenticationError):
            await shake_pair_hands(connection, tmp_path)


async def test_a_gateway_is_no_prefill_worker(deployment: Deployment, pair_port: int) -> None:
    async with pair_connection(pair_port) as connection:
        with pytest.raises(AuthenticationError):
            await shake_pair_hands(connection, deployment.keys, LinkRole.GATEWAY)


async def test_an_unequal_fingerprint_never_pairs(deployment: Deployment) -> None:
    decode = deployment.of_role("decode")[0]
    assert decode.pair_port is not None
    async with gateway_peer(decode.base_url, deployment.keys) as peer:
        fingerprint = (await peer.hello()).fingerprint
    hello = PairHello(
        role=Role.PREFILL,
        epoch=secrets.token_bytes(16),
        fingerprint=msgspec.structs.replace(fingerprint, model_hash="0" * 64),
        block_tokens=16,
        tensor_parallel=1,
        landing_bytes=0,
        transports=("tcp",),
        descriptor=b"",
    )
    async with pair_connection(decode.pair_port) as connection:
        session = await shake_pair_hands(connection, deployment.keys)
        await send_framed(connection, session, encode(hello))
        assert await hangs_up(connection)


@pytest.mark.parametrize(
    "frame",
    [b"\xc1garbage", b"\x93\x03\xc4\x10x", msgpack.packb([99])],
    ids=["garbage", "a cut message", "an unknown one"],
)
async def test_a_bad_frame_of_a_prefill_worker_closes_its_link(
    deployment: Deployment, pair_port: int, frame: bytes
) -> None:
    async with pair_connection(pair_port) as connection:
        session = await shake_pair_hands(connection, deployment.keys)
        await send_framed(connection, session, frame)
        assert await hangs_up(connection)


async def test_a_length_over_the_cap_is_refused_before_it_is_read(deployment: Deployment, pair_port: int) -> None:
    async with pair_connection(pair_port) as connection:
        session = await shake_pair_hands(connection, deployment.keys)
        await connection.send(session.sign(struct.pack("!I", 0xFFFF_FFFF)))
        assert await hangs_up(connection)


async def test_a_frame_without_its_mac_closes_the_link_of_a_prefill_worker(
    deployment: Deployment, pair_port: int
) -> None:
    async with pair_connection(pair_port) as connection:
        await shake_pair_hands(connection, deployment.keys)
        await connection.send(struct.pack("!I", 6) + bytes(22))
        assert await hangs_up(connection)


async def test_a_frame_without_its_mac_closes_the_link_of_a_gateway(deployment: Deployment) -> None:
    for worker in deployment.workers:
        async with gateway_peer(worker.base_url, deployment.keys) as peer:
            await peer.hello()
            await peer.send_unsigned(encode(Cancel(secrets.token_bytes(16), 1)))
            assert await peer.is_closed()


async def send_framed(connection: Any, session: Session, frame: bytes) -> None:
    await connection.send(session.sign(struct.pack("!I", len(frame))) + session.sign(frame))
