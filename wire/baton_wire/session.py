"""The session of a connection after its handshake: a key for each direction, and a MAC on every frame.

Two keys come out of the shared key, OFFER and PROOF, so that each connection and each direction has its own. A frame
carries BLAKE2b(key, number ‖ frame), 16 bytes, after it. The number counts the MACs of its direction from 0 and is not
sent: a frame that is altered, left out, repeated or swapped does not fit, and neither does any frame after it. A long
frame is represented by its SHA-256, which processors compute faster, and the number has its highest bit set.
docs/decisions/link-macs.md says why this MAC.

Where the connection keeps frames apart, a long frame travels in parts, each with its MAC: each is a sign of life, so
that a peer is not taken for dead while it sends. Every part begins with a byte that no message begins with.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Iterator

from baton_wire.errors import AlteredFrameError, BadMessageError
from baton_wire.messages.values import MAX_FRAME_BYTES

log = logging.getLogger(__name__)

FRAME_MAC_BYTES = 16
LOGGED_EVERY_S = 1.0
PART_BYTES = 256 << 10
"""Frames up to here travel whole. At 1 MB/s a part takes a quarter of a second, within what counts as silence."""
MORE_FOLLOWS, IS_LAST = b"\xc1\0", b"\xc1\1"
"""First bytes of a part. msgpack never uses the first of them."""
MAX_SIGNED_BYTES = len(MORE_FOLLOWS) + PART_BYTES + FRAME_MAC_BYTES + 1
"""Everything that is sent at once is shorter: aiohttp refuses messages of this size and more."""
HASHED_FROM_BYTES = 2_048
"""From this many bytes on SHA-256 is quicker where the processor has instructions for it (measured)."""
_NUMBER_BYTES = 8
_HASHED = 1 << 63
"""Keeps a short frame apart from the long one whose SHA-256 it is. No connection gets that far by counting."""
_FROM_DIALLER, _FROM_ACCEPTOR = b"baton frames of the dialler\0", b"baton frames of the acceptor\0"


class AlteredFrames:
    """Frames that reached one owner of links altered: counted, and logged once a second at most."""

    def __init__(
        self, on_met: Callable[[], object] = lambda: None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`on_met` is called for each, for a metric."""
        self._on_met, self._clock = on_met, clock
        self._logged_s: float | None = None
        self.count = 0

    def met(self, peer: str) -> None:
        self.count += 1
        self._on_met()
        now = self._clock()
        if self._logged_s is None or now - self._logged_s >= LOGGED_EVERY_S:
            self._logged_s = now
            log.warning("a frame from %s was altered on its way, its link is closed (%d so far)", peer, self.count)


class Session:
    """One authenticated connection. `sign` in the order of sending, `verify` in the order of receiving."""

    def __init__(self, outgoing: bytes, incoming: bytes, altered: AlteredFrames, peer: str = "a peer") -> None:
        """`outgoing` and `incoming`: 32-byte keys. `altered` counts frames that do not fit; `peer` names the other end
        in its log lines."""
        self._outgoing, self._incoming = (
            hashlib.blake2b(key=key, digest_size=FRAME_MAC_BYTES) for key in (outgoing, incoming)
        )
        self._sent = self._received = 0
        self._altered, self._peer = altered, peer

    def sign(self, frame: bytes) -> bytes:
        """The frame followed by its MAC, as it is sent."""
        mac = _mac(self._outgoing, self._sent, frame)
        self._sent += 1
        return frame + mac

    def verify(self, signed: bytes) -> bytes:
        """The frame without its MAC. Raises AlteredFrameError; nothing of the connection is to be believed then."""
        frame = signed[:-FRAME_MAC_BYTES]
        mac = _mac(self._incoming, self._received, frame)
        self._received += 1
        if not hmac.compare_digest(mac, signed[-FRAME_MAC_BYTES:]):
            self._altered.met(self._peer)
            raise AlteredFrameError(f"frame: its MAC does not fit its {len(frame)} bytes and its place in the order")
        return frame


def _mac(keyed: hashlib.blake2b, number: int, frame: bytes) -> bytes:
    mac = keyed.copy()
    if len(frame) >= HASHED_FROM_BYTES:
        number, frame = number | _HASHED, hashlib.sha256(frame).digest()
    mac.update(number.to_bytes(_NUMBER_BYTES))
    mac.update(frame)
    return mac.digest()


def parts(frame: bytes) -> Iterator[bytes]:
    """Pieces of a frame as they are sent, in order: the frame itself, or the parts of a long one."""
    if len(frame) <= PART_BYTES:
        yield frame
        return
    view = memoryview(frame)
    for start in range(0, len(frame), PART_BYTES):
        mark = MORE_FOLLOWS if start + PART_BYTES < len(frame) else IS_LAST
        yield mark + view[start : start + PART_BYTES]


class FrameParts:
    """Puts frames of at most `longest` bytes together again."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._begun = bytearray()

    def add(self, part: bytes) -> bytes | None:
        """The frame that this part completes; None: more of it follows. Raises BadMessageError."""
        mark = part[: len(MORE_FOLLOWS)]
        if mark not in (MORE_FOLLOWS, IS_LAST):
            if self._begun:
                raise BadMessageError("frame: another one began before all parts of it had come")
            return part
        if len(self._begun) + len(part) - len(mark) > self._longest:
            raise BadMessageError(f"frame: its parts exceed {self._longest} bytes")
        self._begun += memoryview(part)[len(mark) :]
        if mark == MORE_FOLLOWS:
            return None
        frame, self._begun = bytes(self._begun), bytearray()
        return frame


class SignedFrames:
    """A connection that keeps frames apart, as a WebSocket does, after its handshake."""

    def __init__(
        self,
        send: Callable[[bytes], Awaitable[None]],
        receive: Callable[[], Awaitable[bytes]],
        session: Session,
        longest: int = MAX_FRAME_BYTES,
    ) -> None:
        """`longest`: most bytes of a frame that is received."""
        self._send, self._receive, self._session = send, receive, session
        self._parts = FrameParts(longest)

    async def send(self, frame: bytes) -> None:
        if len(frame) <= PART_BYTES:
            await self._send(self._session.sign(frame))
            return
        for part in parts(frame):
            await self._send(self._session.sign(part))
            await asyncio.sleep(0)  # sending waits only for a peer that is slow: others get a turn in between

    async def receive(self, on_part: Callable[[], object] = lambda: None) -> bytes:
        """The next frame; `on_part` is called for each part of a long one that arrived. Raises AlteredFrameError,
        BadMessageError, and what the connection raises when it ends."""
        while True:
            frame = self._parts.add(self._session.verify(await self._receive()))
            if frame is not None:
                return frame
            on_part()


def session_keys(key: bytes, transcript: bytes) -> tuple[bytes, bytes]:
    """The keys for what the dialler sends and for what the acceptor sends: HMAC-SHA256(key, label ‖ transcript).

    `transcript`: the handshake's frames, with both nonces, roles, epochs, versions and the channel.
    """
    dialler, acceptor = (hmac.digest(key, label + transcript, "sha256") for label in (_FROM_DIALLER, _FROM_ACCEPTOR))
    return dialler, acceptor
