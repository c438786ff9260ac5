"""Errors of the KV transfer. What the caller does follows from the type.

TransferError
├── BadMessageError      a peer sent what the protocol does not allow: close the link, count it
│   ├── BadFieldsError   a message of a known type with fields that do not fit: refuse it, keep the link
│   └── AlteredFrameError a frame is not what the peer sent: close the link at once, dial again
├── AuthenticationError  a peer could not prove that it holds a key: close the link, count it
│   ├── VersionError     the peer holds the key but speaks no common wire version: an upgrade has to bring them together
│   └── OwnEpochError    this very process answers: discovery listed it with the others, leave it alone
├── UnfitPairError       the two workers must never exchange KV: report it, choose another pair
├── LinkLostError        the peer or the path is gone: retry with another peer
└── LandingFullError     no room in the landing region now: wait
"""

from __future__ import annotations

from collections.abc import Sequence


class TransferError(Exception):
    """Base of every error that this package raises on purpose."""


class BadMessageError(TransferError):
    """A frame or message that the protocol does not allow."""


class BadFieldsError(BadMessageError):
    """A message whose type is known and whose fields do not fit it. Raised by its receiver, or by a sender before it is
    sent."""

    def __init__(self, text: str, message: str, request: bytes | None = None, attempt: int | None = None) -> None:
        """`message`: the type's name. `request` and `attempt` are those of the message, where it names them."""
        super().__init__(text)
        self.message, self.request, self.attempt = message, request, attempt
        self.fields: Sequence[object] = ()
        """Fields of the frame, its type's number first; empty for a message that was not sent."""


class AlteredFrameError(BadMessageError):
    """A frame's MAC does not fit: it was altered, left out, repeated or swapped on its way."""


class AuthenticationError(TransferError):
    """The handshake of a link failed."""


class VersionError(AuthenticationError):
    """Both ends hold the key but share no wire version; the message names both ranges."""


class OwnEpochError(AuthenticationError):
    """The acceptor offers the dialler's own epoch: it is the same process, or pretends to be."""


class UnfitPairError(TransferError):
    """Two workers whose fingerprints or layouts differ; the message names the first differing field."""


class LinkLostError(TransferError):
    """The link to a peer broke, fell silent, or the peer came back under another epoch."""


class LandingFullError(TransferError):
    """The landing region has no room for a span of the asked length at present."""
