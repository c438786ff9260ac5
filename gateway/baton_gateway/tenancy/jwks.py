"""The public keys of an identity provider (JWKS): which keys of a document tokens are checked with.

PyJWT reads keys. It is the optional extra `jwt`, and is imported where tokens are configured only.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from baton_gateway.tenancy.token_claims import ALGORITHMS

MAX_JWKS_BYTES = 1 << 20
MAX_KEYS = 64
MIN_RSA_BITS = 2_048
_CURVES = {"P-256": ("ES256",), "P-384": ("ES384",), "P-521": ("ES512",)}
_EDWARDS = ("Ed25519", "Ed448")


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key, and the algorithms that it may be used with."""

    key: Any
    algorithms: tuple[str, ...]


def parse_keys(content: bytes, source: object) -> dict[str, PublicKey]:
    """The public keys of a JWKS document by their ids. `source`: names the document in errors. Raises ValueError."""
    if len(content) > MAX_JWKS_BYTES:
        raise ValueError(f"{source}: must be at most {MAX_JWKS_BYTES} bytes")
    try:
        entries = msgspec.json.decode(content, type=dict[str, Any]).get("keys")
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"{source}: is not a JWKS: {error}") from error
    if not isinstance(entries, list) or len(entries) > MAX_KEYS:
        raise ValueError(f"{source}: keys must be a list of at most {MAX_KEYS} keys")
    keys: dict[str, PublicKey] = {}
    for place, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise ValueError(f"{source}: keys[{place}] must be an object")
        if "d" in entry:
            raise ValueError(f"{source}: keys[{place}] is a private key: must have public keys alone")
        if (key := _read_key(entry)) is not None:
            keys[str(entry.get("kid", ""))] = key
    if not keys:
        raise ValueError(f"{source}: has no key for signatures, so no client could send requests")
    return keys


def find_key(keys: Mapping[str, PublicKey], key_id: object) -> PublicKey | None:
    """Find a token's key; None: there is none. A token without an id belongs to the only key."""
    if key_id is None:
        return next(iter(keys.values())) if len(keys) == 1 else None
    return keys.get(key_id) if isinstance(key_id, str) else None


def import_library() -> Any:
    """Import PyJWT. Raises ValueError that names the extra."""
    try:
        importlib.import_module("cryptography")
        return importlib.import_module("jwt")
    except ModuleNotFoundError:
        raise ValueError("tokens need PyJWT: install baton-serving[jwt]") from None


def _read_key(entry: dict[str, Any]) -> PublicKey | None:
    """The public key of an entry; None: it is none that tokens are checked with, such as a shared secret."""
    library = import_library()
    algorithms = _key_algorithms(entry)
    if not algorithms or entry.get("use", "sig") != "sig":
        return None
    try:
        key = library.PyJWK.from_dict(entry, algorithm=algorithms[0]).key
    except (library.PyJWTError, ValueError, TypeError):
        return None
    if entry.get("kty") == "RSA" and key.key_size < MIN_RSA_BITS:
        return None
    return PublicKey(key, algorithms)


def _key_algorithms(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """The algorithms that a key of a JWKS may be used with; none for a shared secret."""
    kind, curve = entry.get("kty"), entry.get("crv")
    algorithms: tuple[str, ...] = ()
    if kind == "RSA":
        algorithms = tuple(name for name in ALGORITHMS if name[:2] in ("RS", "PS"))
    elif kind == "EC" and isinstance(curve, str):
        algorithms = _CURVES.get(curve, ())
    elif kind == "OKP" and curve in _EDWARDS:
        algorithms = ("EdDSA",)
    named = entry.get("alg")
    return algorithms if named is None else tuple(name for name in algorithms if name == named)
