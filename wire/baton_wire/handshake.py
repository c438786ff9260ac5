"""The handshake of every internal link: both sides prove that they hold the same key before anything else is parsed.

Three frames of fixed size, over TCP or as binary WebSocket messages:

    acceptor → dialler  OFFER    versions, role, epoch, nonce, ids of the keys it holds
    dialler  → acceptor PROOF    versions, the chosen version, role, channel, epoch, nonce, the chosen key id, MAC
    acceptor → dialler  CONFIRM  MAC

MAC = HMAC-SHA256(key, label ‖ OFFER ‖ PROOF [‖ PROOF's MAC]), with another label for each side, so that a frame of one
side never serves as the other's, and both nonces, roles, epochs, version ranges and the key id are covered. Each side
draws its nonce anew: a recorded handshake proves nothing later. Where no version is shared the dialler still sends its
PROOF, with version 0: so both ends can name both ranges. The frames that follow carry MACs (`session`). Frames are
packed and checked by pure functions; the two small drivers at the end only move them.
"""

from __future__ import annotations

import asyncio
import enum
import hashlib
import hmac
import secrets
import struct
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from baton_wire.errors import AuthenticationError, OwnEpochError, VersionError
from baton_wire.keys import MAX_KEY_ID_BYTES, MAX_KEYS, KeySet
from baton_wire.messages.values import WIRE_VERSION
from baton_wire.session import AlteredFrames, Session, session_keys

MAGIC = b"BATONLNK"
NONCE_BYTES = 32
MAC_BYTES = 32
_OFFER = struct.Struct(f"!8sHHB16s{NONCE_BYTES}sB{MAX_KEYS * MAX_KEY_ID_BYTES}s")
_PROOF = struct.Struct(f"!8sHHHBB16s{NONCE_BYTES}s{MAX_KEY_ID_BYTES}s")
OFFER_BYTES = _OFFER.size
PROOF_BYTES = _PROOF.size + MAC_BYTES
CONFIRM_BYTES = MAC_BYTES
HANDSHAKE_S = 4.0
"""Bound of a handshake: a link that does not come up is noticed within 5 s as well."""
NO_VERSION = 0
"""In a PROOF: the dialler speaks none of the offered versions."""
_DIALLER, _ACCEPTOR = b"baton link dialler v1\0", b"baton link acceptor v1\0"

Send = Callable[[bytes], Awaitable[None]]
Receive = Callable[[int], Awaitable[bytes]]
"""Next bytes of the peer, exactly as many as asked for (one WebSocket message of that size). A lost connection raises
ConnectionError or EOFError."""


class KeySource(Protocol):
    """A source of a link's current keys: a directory, or a derivation."""

    def current(self) -> KeySet: ...


class LinkRole(enum.IntEnum):
    """The kind of process at one end of a link."""

    GATEWAY = 1
    PREFILL = 2
    DECODE = 3
    OPERATOR = 4


class Channel(enum.IntEnum):
    """The use of a connection after its handshake."""

    CONTROL = 0
    DATA = 1


@dataclass(frozen=True, slots=True)
class Party:
    """This process as it introduces itself on a link."""

    role: LinkRole
    epoch: bytes
    min_version: int = WIRE_VERSION
    max_version: int = WIRE_VERSION


@dataclass(frozen=True, slots=True)
class LinkIdentity:
    """The proven identity of the peer."""

    role: LinkRole
    epoch: bytes
    version: int
    key_id: str
    channel: Channel


@dataclass(frozen=True, slots=True)
class Offer:
    party: Party
    nonce: bytes
    key_ids: tuple[str, ...]
    frame: bytes


@dataclass(frozen=True, slots=True)
class Proof:
    party: Party
    version: int
    channel: Channel
    nonce: bytes
    key_id: str
    frame: bytes
    """Without its MAC."""
    mac: bytes


# Frames ---------------------------------------------------------------------------------------------------------------


def pack_offer(party: Party, keys: KeySet, nonce: bytes) -> bytes:
    """The acceptor's first frame. Raises ValueError when a field has the wrong size."""
    _check_party(party, nonce)
    ids = b"".join(key_id.encode().ljust(MAX_KEY_ID_BYTES, b"\0") for key_id in keys.ids)
    versions = party.min_version, party.max_version
    return _OFFER.pack(MAGIC, *versions, party.role, party.epoch, nonce, len(keys.ids), ids)


def parse_offer(frame: bytes) -> Offer:
    """Raises AuthenticationError when the frame is not an offer."""
    if len(frame) != OFFER_BYTES:
        raise AuthenticationError(f"offer: {len(frame)} bytes, expected {OFFER_BYTES}")
    magic, low, high, role, epoch, nonce, count, ids = _OFFER.unpack(frame)
    if magic != MAGIC or count > MAX_KEYS:
        raise AuthenticationError("offer: the peer does not speak this protocol")
    texts = tuple(_key_id(ids[i * MAX_KEY_ID_BYTES : (i + 1) * MAX_KEY_ID_BYTES]) for i in range(count))
    return Offer(Party(_role(role), epoch, low, high), nonce, texts, frame)


def pack_proof(offer: Offer, party: Party, channel: Channel, keys: KeySet, nonce: bytes) -> bytes:
    """The dialler's answer. Raises AuthenticationError when no key is shared, VersionError when no version is."""
    return _proof(offer, party, channel, keys, nonce, common_version(party, offer.party))


def pack_refusal(offer: Offer, party: Party, channel: Channel, keys: KeySet, nonce: bytes) -> bytes:
    """The answer to an acceptor with which no version is shared: `check_proof` raises VersionError there, too."""
    return _proof(offer, party, channel, keys, nonce, NO_VERSION)


def _proof(offer: Offer, party: Party, channel: Channel, keys: KeySet, nonce: bytes, version: int) -> bytes:
    _check_party(party, nonce)
    key_id = keys.choose(offer.key_ids)
    versions = party.min_version, party.max_version, version
    padded_id = key_id.encode().ljust(MAX_KEY_ID_BYTES, b"\0")
    frame = _PROOF.pack(MAGIC, *versions, party.role, channel, party.epoch, nonce, padded_id)
    return frame + _mac(keys.by_id[key_id], _DIALLER, offer.frame, frame)


def parse_proof(frame: bytes) -> Proof:
    """Take the frame apart; nothing of it is true before `check_proof`. Raises AuthenticationError."""
    if len(frame) != PROOF_BYTES:
        raise AuthenticationError(f"proof: {len(frame)} bytes, expected {PROOF_BYTES}")
    body, mac = frame[: _PROOF.size], frame[_PROOF.size :]
    magic, low, high, version, role, channel, epoch, nonce, key_id = _PROOF.unpack(body)
    if magic != MAGIC:
        raise AuthenticationError("proof: the peer does not speak this protocol")
    if channel not in (Channel.CONTROL, Channel.DATA):
        raise AuthenticationError(f"proof: channel {channel} does not exist")
    party = Party(_role(role), epoch, low, high)
    return Proof(party, version, Channel(channel), nonce, _key_id(key_id), body, mac)


def check_proof(offer: Offer, proof: Proof, keys: KeySet) -> LinkIdentity:
    """The dialler's identity. Raises AuthenticationError when it proved nothing or chose what was not offered.

    Raises VersionError when the dialler proved its key but there is no common version.
    """
    key = keys.by_id.get(proof.key_id)
    if key is None or proof.key_id not in offer.key_ids:
        raise AuthenticationError(f"proof: key id {proof.key_id!r} is not one that was offered")
    if not hmac.compare_digest(proof.mac, _mac(key, _DIALLER, offer.frame, proof.frame)):
        raise AuthenticationError(f"proof: wrong MAC under key id {proof.key_id!r}")
    if proof.version != common_version(offer.party, proof.party):
        raise AuthenticationError(f"proof: version {proof.version} is not the highest that both sides speak")
    if proof.party.epoch == offer.party.epoch:
        raise AuthenticationError("proof: the dialler claims the acceptor's own epoch")
    return LinkIdentity(proof.party.role, proof.party.epoch, proof.version, proof.key_id, proof.channel)


def pack_confirm(offer: Offer, proof: Proof, keys: KeySet) -> bytes:
    return _mac(keys.by_id[proof.key_id], _ACCEPTOR, offer.frame, proof.frame + proof.mac)


def check_confirm(offer: Offer, proof: Proof, frame: bytes, keys: KeySet) -> LinkIdentity:
    """The acceptor's identity. Raises AuthenticationError when it proved nothing."""
    expected = _mac(keys.by_id[proof.key_id], _ACCEPTOR, offer.frame, proof.frame + proof.mac)
    if len(frame) != CONFIRM_BYTES or not hmac.compare_digest(frame, expected):
        raise AuthenticationError(f"confirm: wrong MAC under key id {proof.key_id!r}")
    return LinkIdentity(offer.party.role, offer.party.epoch, proof.version, proof.key_id, proof.channel)


def dialler_session(offer: Offer, proof: Proof, keys: KeySet, altered: AlteredFrames) -> Session:
    """The dialler's session, once `check_confirm` has passed."""
    ours, theirs = session_keys(keys.by_id[proof.key_id], offer.frame + proof.frame + proof.mac)
    return Session(ours, theirs, altered, _shown(offer.party))


def acceptor_session(offer: Offer, proof: Proof, keys: KeySet, altered: AlteredFrames) -> Session:
    """The acceptor's session, once `check_proof` has passed."""
    theirs, ours = session_keys(keys.by_id[proof.key_id], offer.frame + proof.frame + proof.mac)
    return Session(ours, theirs, altered, _shown(proof.party))


def _shown(party: Party) -> str:
    return f"{party.role.name.lower()} {party.epoch.hex()[:8]}"


def common_version(own: Party, peer: Party) -> int:
    """The highest version that both speak. Raises VersionError naming both ranges when there is none."""
    version = min(own.max_version, peer.max_version)
    if version < max(own.min_version, peer.min_version):
        ranges = f"{own.min_version}..{own.max_version} here, {peer.min_version}..{peer.max_version} there"
        raise VersionError(f"version: {ranges}")
    return version


def _mac(key: bytes, label: bytes, offer: bytes, proof: bytes) -> bytes:
    return hmac.new(key, label + offer + proof, hashlib.sha256).digest()


def _check_party(party: Party, nonce: bytes) -> None:
    if len(party.epoch) != 16 or len(nonce) != NONCE_BYTES:
        raise ValueError(f"epoch: {len(party.epoch)} bytes (16 needed); nonce: {len(nonce)} ({NONCE_BYTES} needed)")


def _role(number: int) -> LinkRole:
    try:
        return LinkRole(number)
    except ValueError as error:
        raise AuthenticationError(f"role: {number} does not exist") from error


def _key_id(field: bytes) -> str:
    try:
        return field.rstrip(b"\0").decode("ascii")
    except UnicodeDecodeError as error:
        raise AuthenticationError("key id: not ASCII") from error


# Drivers --------------------------------------------------------------------------------------------------------------


async def dial_handshake(  # noqa: PLR0913 - options are keyword only, as those of `accept_handshake`
    send: Send,
    receive: Receive,
    keys: KeySource,
    own: Party,
    *,
    channel: Channel = Channel.CONTROL,
    accept_roles: Collection[LinkRole],
    altered: AlteredFrames,
    timeout_s: float = HANDSHAKE_S,
) -> tuple[LinkIdentity, Session]:
    """Handshake as the side that opened the connection. Returns the acceptor's identity, and the session of all further
    frames.

    `altered` counts frames that do not arrive as they were sent.

    Raises AuthenticationError (also when the peer hangs up or the time is over), of it OwnEpochError when a process
    dialled itself. The caller closes the connection.
    """
    try:
        async with asyncio.timeout(timeout_s):
            held = keys.current()
            offer = parse_offer(await receive(OFFER_BYTES))
            if offer.party.epoch == own.epoch:
                raise OwnEpochError("offer: the dialler's own epoch")
            try:
                frame = pack_proof(offer, own, channel, held, secrets.token_bytes(NONCE_BYTES))
            except VersionError:
                await send(pack_refusal(offer, own, channel, held, secrets.token_bytes(NONCE_BYTES)))
                raise
            await send(frame)
            proof = parse_proof(frame)
            identity = check_confirm(offer, proof, await receive(CONFIRM_BYTES), held)
    except TimeoutError as error:
        raise AuthenticationError(f"handshake: not finished within {timeout_s} s") from error
    except (ConnectionError, EOFError) as error:
        raise AuthenticationError("handshake: the peer hung up; do both sides hold the same key?") from error
    return _in_role(identity, accept_roles), dialler_session(offer, proof, held, altered)


async def accept_handshake(
    send: Send,
    receive: Receive,
    keys: KeySource,
    own: Party,
    *,
    accept_roles: Collection[LinkRole],
    altered: AlteredFrames,
    timeout_s: float = HANDSHAKE_S,
) -> tuple[LinkIdentity, Session]:
    """Handshake as the side that was dialled. Returns the dialler's identity and the session; raises like
    `dial_handshake`."""
    try:
        async with asyncio.timeout(timeout_s):
            held = keys.current()
            offer = parse_offer(pack_offer(own, held, secrets.token_bytes(NONCE_BYTES)))
            await send(offer.frame)
            proof = parse_proof(await receive(PROOF_BYTES))
            identity = _in_role(check_proof(offer, proof, held), accept_roles)
            await send(pack_confirm(offer, proof, held))
    except TimeoutError as error:
        raise AuthenticationError(f"handshake: not finished within {timeout_s} s") from error
    except (ConnectionError, EOFError) as error:
        raise AuthenticationError("handshake: the peer hung up") from error
    return identity, acceptor_session(offer, proof, held, altered)


def _in_role(identity: LinkIdentity, accept_roles: Collection[LinkRole]) -> LinkIdentity:
    if identity.role not in accept_roles:
        expected = ", ".join(role.name.lower() for role in accept_roles)
        raise AuthenticationError(f"role: the peer is a {identity.role.name.lower()}, expected {expected}")
    return identity
