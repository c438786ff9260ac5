"""The handshake: who passes, and that nothing else does."""

from __future__ import annotations

import asyncio
import random
import secrets
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import ClientSession, WSMsgType, web

from baton_kv_transfer.network import SocketConnection
from baton_testing.kv_transfer.builders import key_directory
from baton_wire import handshake as link_auth
from baton_wire.errors import AuthenticationError, VersionError
from baton_wire.handshake import (
    Channel,
    LinkIdentity,
    LinkRole,
    Party,
    accept_handshake,
    check_confirm,
    check_proof,
    dial_handshake,
    pack_confirm,
    pack_offer,
    pack_proof,
    parse_offer,
    parse_proof,
)
from baton_wire.keys import KeyDirectory, KeySet, write_new_key
from baton_wire.messages.values import WIRE_VERSION
from baton_wire.session import AlteredFrames, Session, SignedFrames

ACCEPTOR, DIALLER = Party(LinkRole.DECODE, b"d" * 16), Party(LinkRole.PREFILL, b"p" * 16)
KEYS = KeySet({"k1": b"1" * 32, "k2": b"2" * 32})
ANY = tuple(LinkRole)


def nonce() -> bytes:
    return secrets.token_bytes(link_auth.NONCE_BYTES)


def shake(acceptor_keys: KeySet, dialler_keys: KeySet) -> tuple[LinkIdentity, LinkIdentity]:
    """The results of the acceptor and of the dialler."""
    offer = pack_offer(ACCEPTOR, acceptor_keys, nonce())
    proof = pack_proof(parse_offer(offer), DIALLER, Channel.CONTROL, dialler_keys, nonce())
    seen = check_proof(parse_offer(offer), parse_proof(proof), acceptor_keys)
    confirm = pack_confirm(parse_offer(offer), parse_proof(proof), acceptor_keys)
    return seen, check_confirm(parse_offer(offer), parse_proof(proof), confirm, dialler_keys)


def test_both_sides_learn_role_epoch_version_and_key() -> None:
    assert shake(KEYS, KEYS) == (
        LinkIdentity(LinkRole.PREFILL, b"p" * 16, WIRE_VERSION, "k2", Channel.CONTROL),
        LinkIdentity(LinkRole.DECODE, b"d" * 16, WIRE_VERSION, "k2", Channel.CONTROL),
    )


def test_one_shared_key_is_enough() -> None:
    dialler = KeySet({"k1": b"1" * 32, "k9": b"9" * 32})
    assert shake(KEYS, dialler)[0].key_id == "k1"


def test_the_same_id_with_another_key_proves_nothing() -> None:
    with pytest.raises(AuthenticationError, match="wrong MAC under key id 'k2'"):
        shake(KEYS, KeySet({"k2": b"x" * 32}))


@pytest.mark.parametrize(
    ("acceptor", "dialler", "version"), [((1, 3), (2, 5), 3), ((1, 1), (1, 4), 1), ((2, 2), (1, 2), 2)]
)
def test_the_highest_common_version_is_agreed(
    acceptor: tuple[int, int], dialler: tuple[int, int], version: int
) -> None:
    own = Party(LinkRole.DECODE, b"d" * 16, *acceptor)
    offer = parse_offer(pack_offer(own, KEYS, nonce()))
    proof = pack_proof(offer, Party(LinkRole.PREFILL, b"p" * 16, *dialler), Channel.DATA, KEYS, nonce())
    assert check_proof(offer, parse_proof(proof), KEYS).version == version


def test_no_common_version_is_named() -> None:
    offer = parse_offer(pack_offer(Party(LinkRole.DECODE, b"d" * 16, 3, 4), KEYS, nonce()))
    with pytest.raises(AuthenticationError, match=r"version: 1\.\.2 here, 3\.\.4 there"):
        pack_proof(offer, Party(LinkRole.PREFILL, b"p" * 16, 1, 2), Channel.DATA, KEYS, nonce())


@pytest.mark.parametrize("other", [WIRE_VERSION - 1, WIRE_VERSION + 1])
async def test_old_and_new_refuse_each_other_by_name_on_both_ends(tmp_path: Path, other: int) -> None:
    """A process of the wire version before, or of the next one, meets one of this version."""
    keys = key_directory(tmp_path / "keys")
    seen, by_dialler = await meet(keys, keys, dialler=Party(LinkRole.PREFILL, b"p" * 16, other, other))
    assert isinstance(seen, VersionError)
    assert isinstance(by_dialler, VersionError)
    assert str(seen) == f"version: {WIRE_VERSION}..{WIRE_VERSION} here, {other}..{other} there"
    assert str(by_dialler) == f"version: {other}..{other} here, {WIRE_VERSION}..{WIRE_VERSION} there"


@pytest.mark.parametrize("dials", ["the old one", "the new one"])
async def test_a_process_whose_frames_have_no_macs_is_refused_by_name(tmp_path: Path, dials: str) -> None:
    """Version 1 sent frames without MACs; this version neither sends nor takes them."""
    keys = key_directory(tmp_path / "keys")
    if dials == "the old one":
        seen, by_dialler = await meet(keys, keys, dialler=Party(LinkRole.PREFILL, b"p" * 16, 1, 1))
    else:
        by_dialler, seen = await meet(keys, keys, acceptor=Party(LinkRole.DECODE, b"d" * 16, 1, 1))
    assert isinstance(seen, VersionError)
    assert isinstance(by_dialler, VersionError)
    assert str(seen) == f"version: {WIRE_VERSION}..{WIRE_VERSION} here, 1..1 there"
    assert str(by_dialler) == f"version: 1..1 here, {WIRE_VERSION}..{WIRE_VERSION} there"


async def test_a_process_that_speaks_both_versions_pairs_with_an_old_one(tmp_path: Path) -> None:
    keys = key_directory(tmp_path / "keys")
    both = Party(LinkRole.PREFILL, b"p" * 16, WIRE_VERSION, WIRE_VERSION + 1)
    seen, by_dialler = await meet(keys, keys, dialler=both)
    assert isinstance(seen, LinkIdentity)
    assert isinstance(by_dialler, LinkIdentity)
    assert seen.version == by_dialler.version == WIRE_VERSION


def test_a_refusal_without_the_key_names_nothing() -> None:
    """A peer without the key learns nothing and causes nothing but a failed proof."""
    offer = parse_offer(pack_offer(ACCEPTOR, KEYS, nonce()))
    later = Party(LinkRole.PREFILL, b"p" * 16, WIRE_VERSION + 1, WIRE_VERSION + 1)
    forged = link_auth.pack_refusal(offer, later, Channel.CONTROL, KeySet({"k2": b"x" * 32}), nonce())
    with pytest.raises(AuthenticationError, match="wrong MAC"):
        check_proof(offer, parse_proof(forged), KEYS)


def test_a_lower_version_than_both_speak_is_refused() -> None:
    """A downgrade is inside the MAC, so only a holder of the key can try it; it is refused all the same."""
    offer = parse_offer(pack_offer(Party(LinkRole.DECODE, b"d" * 16, 1, 3), KEYS, nonce()))
    lying = Party(LinkRole.DECODE, b"d" * 16, 1, 1)
    shown = link_auth.Offer(lying, offer.nonce, offer.key_ids, offer.frame)
    proof = pack_proof(shown, Party(LinkRole.PREFILL, b"p" * 16, 1, 3), Channel.DATA, KEYS, nonce())
    with pytest.raises(AuthenticationError, match="version 1 is not the highest"):
        check_proof(offer, parse_proof(proof), KEYS)


def test_a_recorded_proof_does_not_fit_another_offer() -> None:
    first, second = (parse_offer(pack_offer(ACCEPTOR, KEYS, nonce())) for _ in range(2))
    recorded = parse_proof(pack_proof(first, DIALLER, Channel.CONTROL, KEYS, nonce()))
    check_proof(first, recorded, KEYS)
    with pytest.raises(AuthenticationError, match="wrong MAC"):
        check_proof(second, recorded, KEYS)


def test_a_recorded_confirm_does_not_fit_another_proof() -> None:
    offer = parse_offer(pack_offer(ACCEPTOR, KEYS, nonce()))
    first, second = (parse_proof(pack_proof(offer, DIALLER, Channel.CONTROL, KEYS, nonce())) for _ in range(2))
    confirm = pack_confirm(offer, first, KEYS)
    check_confirm(offer, first, confirm, KEYS)
    with pytest.raises(AuthenticationError, match="wrong MAC"):
        check_confirm(offer, second, confirm, KEYS)


def test_a_proof_reflected_as_confirm_proves_nothing() -> None:
    offer = parse_offer(pack_offer(ACCEPTOR, KEYS, nonce()))
    proof = parse_proof(pack_proof(offer, DIALLER, Channel.CONTROL, KEYS, nonce()))
    with pytest.raises(AuthenticationError):
        check_confirm(offer, proof, proof.mac, KEYS)


def test_a_key_that_was_not_offered_is_refused() -> None:
    offer = parse_offer(pack_offer(ACCEPTOR, KeySet({"k1": KEYS.by_id["k1"]}), nonce()))
    other = link_auth.Offer(offer.party, offer.nonce, ("k2",), offer.frame)
    proof = parse_proof(pack_proof(other, DIALLER, Channel.CONTROL, KEYS, nonce()))
    with pytest.raises(AuthenticationError, match="key id 'k2' is not one that was offered"):
        check_proof(offer, proof, KEYS)


def test_the_acceptors_own_epoch_is_refused() -> None:
    offer = parse_offer(pack_offer(ACCEPTOR, KEYS, nonce()))
    twin = Party(LinkRole.PREFILL, ACCEPTOR.epoch)
    proof = parse_proof(pack_proof(offer, twin, Channel.CONTROL, KEYS, nonce()))
    with pytest.raises(AuthenticationError, match="own epoch"):
        check_proof(offer, proof, KEYS)


def test_no_mutated_proof_or_confirm_of_ten_thousand_passes() -> None:
    chance = random.Random(4)
    offer = parse_offer(pack_offer(ACCEPTOR, KEYS, nonce()))
    proof = pack_proof(offer, DIALLER, Channel.CONTROL, KEYS, nonce())
    confirm = pack_confirm(offer, parse_proof(proof), KEYS)
    check_proof(offer, parse_proof(proof), KEYS)
    accepted = 0
    for _ in range(5_000):
        accepted += _passes(lambda: check_proof(offer, parse_proof(_mutated(proof, chance)), KEYS))
        accepted += _passes(lambda: check_confirm(offer, parse_proof(proof), _mutated(confirm, chance), KEYS))
    assert accepted == 0


def _mutated(frame: bytes, chance: random.Random) -> bytes:
    changed = bytearray(frame)
    for _ in range(chance.randint(1, 3)):
        changed[chance.randrange(len(changed))] ^= chance.randint(1, 255)
    if chance.random() < 0.1:
        changed = changed[: chance.randrange(len(changed))]
    return bytes(changed) if bytes(changed) != frame else b""


def _passes(check: Callable[[], object]) -> bool:
    try:
        check()
    except AuthenticationError:
        return False
    return True


def test_every_truncated_or_random_frame_is_a_typed_error() -> None:
    chance = random.Random(5)
    frames = [chance.randbytes(size) for size in (0, 1, link_auth.OFFER_BYTES, link_auth.PROOF_BYTES, 5_000)]
    offer = pack_offer(ACCEPTOR, KEYS, nonce())
    frames += [offer[:size] for size in range(len(offer))]
    for frame in frames:
        with pytest.raises(AuthenticationError):
            parse_offer(frame)
        with pytest.raises(AuthenticationError):
            parse_proof(frame)


# Over real connections -----------------------------------------------------------------------------------------------


def pipe() -> tuple[SocketConnection, SocketConnection]:
    here, there = socket.socketpair()
    return SocketConnection(here), SocketConnection(there)


async def meet(
    acceptor_keys: KeyDirectory,
    dialler_keys: KeyDirectory,
    *,
    dialler: Party = DIALLER,
    acceptor: Party = ACCEPTOR,
    accepted: tuple[LinkRole, ...] = ANY,
    wanted: tuple[LinkRole, ...] = ANY,
) -> tuple[LinkIdentity | BaseException, LinkIdentity | BaseException]:
    acceptor_end, dialler_end = pipe()

    async def closing(side: Awaitable[tuple[LinkIdentity, Session]], end: SocketConnection) -> LinkIdentity:
        try:
            return (await side)[0]
        except AuthenticationError:
            end.close()
            raise

    accept = accept_handshake(
        acceptor_end.send,
        acceptor_end.receive,
        acceptor_keys,
        acceptor,
        accept_roles=accepted,
        altered=AlteredFrames(),
        timeout_s=2.0,
    )
    dial = dial_handshake(
        dialler_end.send,
        dialler_end.receive,
        dialler_keys,
        dialler,
        accept_roles=wanted,
        altered=AlteredFrames(),
        timeout_s=2.0,
    )
    results = await asyncio.gather(closing(accept, acceptor_end), closing(dial, dialler_end), return_exceptions=True)
    acceptor_end.close()
    dialler_end.close()
    return results[0], results[1]


async def test_keys_rotate_while_processes_run(tmp_path: Path) -> None:
    ours, theirs = key_directory(tmp_path / "p", "old"), key_directory(tmp_path / "d", "unrelated")
    (tmp_path / "d" / "unrelated").unlink()
    (tmp_path / "d" / "old").write_bytes((tmp_path / "p" / "old").read_bytes())
    (tmp_path / "d" / "old").chmod(0o600)

    async def key_in_use() -> object:
        seen, _ = await meet(theirs, ours)
        return seen.key_id if isinstance(seen, LinkIdentity) else type(seen)

    assert await key_in_use() == "old"
    new = write_new_key(tmp_path / "p", "zz-new")
    assert await key_in_use() == "old"
    (tmp_path / "d" / "zz-new").write_bytes(new.read_bytes())
    (tmp_path / "d" / "zz-new").chmod(0o600)
    assert await key_in_use() == "zz-new"
    (tmp_path / "p" / "old").unlink()
    assert await key_in_use() == "zz-new"
    (tmp_path / "d" / "old").unlink()
    assert await key_in_use() == "zz-new"
    new.unlink()
    write_new_key(tmp_path / "p", "zz-new")
    assert await key_in_use() is AuthenticationError


async def test_a_wrong_key_fails_on_both_sides(tmp_path: Path) -> None:
    seen, by_dialler = await meet(key_directory(tmp_path / "a"), key_directory(tmp_path / "b"))
    assert isinstance(seen, AuthenticationError)
    assert isinstance(by_dialler, AuthenticationError)
    assert "same key" in str(by_dialler)


async def test_a_role_that_has_no_business_here_is_refused(tmp_path: Path) -> None:
    keys = key_directory(tmp_path / "keys")
    gateway = Party(LinkRole.GATEWAY, b"g" * 16)
    seen, by_dialler = await meet(keys, keys, dialler=gateway, accepted=(LinkRole.PREFILL,))
    assert isinstance(seen, AuthenticationError)
    assert "the peer is a gateway, expected prefill" in str(seen)
    assert isinstance(by_dialler, AuthenticationError)
    _, by_dialler = await meet(keys, keys, wanted=(LinkRole.PREFILL,))
    assert isinstance(by_dialler, AuthenticationError)
    assert "the peer is a decode" in str(by_dialler)


@pytest.mark.parametrize("side", ["accept", "dial"])
async def test_a_silent_peer_is_given_up_in_time(tmp_path: Path, side: str) -> None:
    keys = key_directory(tmp_path / "keys")
    here, there = pipe()
    shaking = accept_handshake if side == "accept" else dial_handshake
    with pytest.raises(AuthenticationError, match="not finished within"):
        await shaking(
            here.send, here.receive, keys, ACCEPTOR, accept_roles=ANY, altered=AlteredFrames(), timeout_s=0.05
        )
    here.close()
    there.close()


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n" * 60, b"\x85\xa4" * 500, bytes(link_auth.PROOF_BYTES)])
async def test_garbage_instead_of_a_handshake_is_refused(tmp_path: Path, garbage: bytes) -> None:
    keys = key_directory(tmp_path / "keys")
    here, there = pipe()
    await there.send(garbage)
    with pytest.raises(AuthenticationError):
        await accept_handshake(
            here.send, here.receive, keys, ACCEPTOR, accept_roles=ANY, altered=AlteredFrames(), timeout_s=1.0
        )
    here.close()
    there.close()


async def test_the_handshake_runs_over_websockets(tmp_path: Path) -> None:
    keys = key_directory(tmp_path / "keys")
    seen: list[LinkIdentity] = []

    async def link(request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse()
        await ws.prepare(request)

        async def receive(size: int) -> bytes:
            message = await ws.receive()
            assert message.type is WSMsgType.BINARY
            return bytes(message.data)

        identity, session = await accept_handshake(
            ws.send_bytes, receive, keys, ACCEPTOR, accept_roles=(LinkRole.GATEWAY,), altered=AlteredFrames()
        )
        seen.append(identity)
        frames = SignedFrames(ws.send_bytes, ws.receive_bytes, session)
        await frames.send(b"back: " + await frames.receive())
        await ws.close()
        return ws

    app = web.Application()
    app.router.add_get("/link", link)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    async with ClientSession() as session, session.ws_connect(f"ws://127.0.0.1:{port}/link") as ws:
        gateway = Party(LinkRole.GATEWAY, b"g" * 16)
        identity, proven = await dial_handshake(
            ws.send_bytes,
            lambda size: ws.receive_bytes(),
            keys,
            gateway,
            accept_roles=(LinkRole.DECODE,),
            altered=AlteredFrames(),
        )
        frames = SignedFrames(ws.send_bytes, ws.receive_bytes, proven)
        await frames.send(b"there")
        assert await frames.receive() == b"back: there"
    await runner.cleanup()
    assert (seen[0].role, seen[0].epoch) == (LinkRole.GATEWAY, b"g" * 16)
    assert (identity.role, identity.epoch) == (LinkRole.DECODE, b"d" * 16)
