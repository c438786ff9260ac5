"""An identity provider: its keys, and the tokens that it signs."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

NOW = 1_800_000_000.0
ISSUER, AUDIENCE = "https://id.example", "baton"
CLAIMS: dict[str, Any] = {"iss": ISSUER, "aud": AUDIENCE, "exp": NOW + 60, "team": "red"}


class Issuer:
    """An identity provider with one key."""

    def __init__(self, key_id: str, kind: str = "RS256") -> None:
        self.jwt: Any = pytest.importorskip("jwt", reason="the extra 'jwt' is not installed")
        keys = "cryptography.hazmat.primitives.asymmetric"
        ec, ed25519, rsa = (pytest.importorskip(f"{keys}.{name}") for name in ("ec", "ed25519", "rsa"))
        self.key_id, self.algorithm = key_id, kind
        makers = {
            "RS256": lambda: rsa.generate_private_key(65_537, 2_048),
            "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
            "EdDSA": ed25519.Ed25519PrivateKey.generate,
        }
        self.private: Any = makers[kind]()

    def public(self, **fields: Any) -> dict[str, Any]:
        jwk = self.jwt.algorithms.get_default_algorithms()[self.algorithm].to_jwk(self.private.public_key())
        return {**json.loads(jwk), "kid": self.key_id, **fields}

    def public_pem(self) -> bytes:
        """The public key as everybody may have it."""
        serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
        pem: bytes = self.private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return pem

    def sign(self, claims: dict[str, Any] = CLAIMS, headers: dict[str, Any] | None = None) -> str:
        headers = {"kid": self.key_id} if headers is None else headers
        token: str = self.jwt.encode(claims, self.private, self.algorithm, headers=headers)
        return token


def b64(content: object) -> str:
    """JSON as a part of a token."""
    return b64_bytes(json.dumps(content).encode())


def b64_bytes(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def write_token_rules(folder: Path, **fields: Any) -> Path:
    """A file for `--jwt`; fields that are None are left out."""
    rules = {"issuer": ISSUER, "audience": AUDIENCE, "keys": "jwks.json", "claim": "team"} | fields
    path = folder / "jwt.json"
    path.write_text(json.dumps({name: value for name, value in rules.items() if value is not None}))
    return path
