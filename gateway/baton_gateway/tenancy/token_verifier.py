"""Verifies tokens (JWT) of an identity provider by its public keys, which a JWKS file holds.

PyJWT checks the signatures. It is the optional extra `jwt`, and is imported where tokens are configured only.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from baton_gateway.tenancy.key_files import file_versions
from baton_gateway.tenancy.token_claims import ALGORITHMS, TokenRules, find_tenant, refused

MAX_TOKEN_CHARS = 8_192
MAX_FILE_BYTES = 1 << 20
MAX_KEYS = 64
MIN_RSA_BITS = 2_048
LOOK_S = 1.0
"""The least time between two looks at the file for a key that is unknown."""
_CURVES = {"P-256": ("ES256",), "P-384": ("ES384",), "P-521": ("ES512",)}
_EDWARDS = ("Ed25519", "Ed448")


@dataclass(frozen=True, slots=True)
class _PublicKey:
    key: Any
    algorithms: tuple[str, ...]


class SigningKeys:
    """The public keys of an identity provider by their ids, from the last valid content of a JWKS file."""

    def __init__(self, path: Path) -> None:
        """Raises ValueError that names the file, or the extra that is missing."""
        self._jwt: Any = import_library()
        self._path = path
        self._version: object = file_versions(path)
        self._looked_s = float("-inf")
        self._keys = self._read()

    def refresh(self) -> bool:
        """Read the file again if it changed; returns whether it did. Raises ValueError once for each wrong content; the
        former keys stay valid then."""
        if (version := file_versions(self._path)) == self._version:
            return False
        self._version = version
        self._keys = self._read()
        return True

    def find(self, key_id: object, now_s: float) -> _PublicKey | None:
        """Find a key; None: there is none. A token without an id belongs to the only key."""
        if (key := self._find(key_id)) is not None:
            return key
        if 0 <= now_s - self._looked_s < LOOK_S:
            return None
        self._looked_s = now_s
        try:
            self.refresh()
        except ValueError:
            self._version = None  # the periodic look reports it
        return self._find(key_id)

    def _find(self, key_id: object) -> _PublicKey | None:
        if key_id is None:
            return next(iter(self._keys.values())) if len(self._keys) == 1 else None
        return self._keys.get(key_id) if isinstance(key_id, str) else None

    def _read(self) -> dict[str, _PublicKey]:
        try:
            with self._path.open("rb") as opened:
                content = opened.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise ValueError(f"{self._path}: {error.strerror or error}") from error
        if len(content) > MAX_FILE_BYTES:
            raise ValueError(f"{self._path}: must be at most {MAX_FILE_BYTES} bytes")
        try:
            entries = msgspec.json.decode(content, type=dict[str, Any]).get("keys")
        except msgspec.DecodeError as error:
            raise ValueError(f"{self._path}: is not a JWKS: {error}") from error
        if not isinstance(entries, list) or len(entries) > MAX_KEYS:
            raise ValueError(f"{self._path}: keys must be a list of at most {MAX_KEYS} keys")
        keys: dict[str, _PublicKey] = {}
        for place, entry in enumerate(entries):
            if not isinstance(entry, dict):
                raise ValueError(f"{self._path}: keys[{place}] must be an object")
            if "d" in entry:
                raise ValueError(f"{self._path}: keys[{place}] is a private key: must have public keys alone")
            if (key := self._key(entry)) is not None:
                keys[str(entry.get("kid", ""))] = key
        if not keys:
            raise ValueError(f"{self._path}: has no key for signatures, so no client could send requests")
        return keys

    def _key(self, entry: dict[str, Any]) -> _PublicKey | None:
        """The public key of an entry; None: it is none that tokens are checked with, such as a shared secret."""
        algorithms = _key_algorithms(entry)
        if not algorithms or entry.get("use", "sig") != "sig":
            return None
        try:
            key = self._jwt.PyJWK.from_dict(entry, algorithm=algorithms[0]).key
        except self._jwt.PyJWTError:
            return None
        if entry.get("kty") == "RSA" and key.key_size < MIN_RSA_BITS:
            return None
        return _PublicKey(key, algorithms)


class TokenVerifier:
    """Finds the tenant that a token names."""

    def __init__(self, rules: TokenRules, keys: SigningKeys) -> None:
        self._jwt: Any = import_library()
        self._rules = rules
        self.keys = keys

    def tenant_of(self, token: str, now_s: float) -> str:
        """Return the name of the tenant in a valid token. `now_s`: the wall clock. Raises RefusedError (401)."""
        if len(token) > MAX_TOKEN_CHARS:
            raise refused(f"is longer than {MAX_TOKEN_CHARS} characters")
        try:
            header: Mapping[str, object] = self._jwt.get_unverified_header(token)
        except (self._jwt.PyJWTError, ValueError):
            raise refused("is malformed") from None
        algorithm = header.get("alg")
        if algorithm not in self._rules.algorithms or "crit" in header:
            raise refused("is signed in a way that is not allowed here")
        key = self.keys.find(header.get("kid"), now_s)
        if key is None or algorithm not in key.algorithms:
            raise refused("is signed with an unknown key")
        ignored = dict.fromkeys(("verify_exp", "verify_nbf", "verify_iat", "verify_aud", "verify_iss"), False)
        options = ignored | {"verify_signature": True, "verify_sub": False, "verify_jti": False}
        try:
            claims = self._jwt.decode(token, key.key, algorithms=[algorithm], options=options)
        except (self._jwt.PyJWTError, ValueError):
            raise refused("has a wrong signature") from None
        return find_tenant(claims, self._rules, now_s)


def read_verifier(path: Path) -> TokenVerifier:
    """Build the verifier that a file of `--jwt` describes. Raises ValueError that names the file and the field."""
    try:
        rules = msgspec.json.decode(path.read_bytes(), type=TokenRules)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from error
    except msgspec.DecodeError as error:
        raise ValueError(f"{path}: {error}") from error
    return TokenVerifier(rules, SigningKeys(path.parent / rules.keys))


def looks_like_token(credential: str) -> bool:
    """Return whether a credential has the form of a token. An API key may have it, too."""
    return credential.count(".") == 2 and credential.startswith("ey")


def import_library() -> Any:
    """Import PyJWT. Raises ValueError that names the extra."""
    try:
        importlib.import_module("cryptography")
        return importlib.import_module("jwt")
    except ModuleNotFoundError:
        raise ValueError("tokens need PyJWT: install baton-serving[jwt]") from None


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
