"""Verifies tokens (JWT) of an identity provider by its public keys, which a file or a URL has.

PyJWT checks the signatures. It is the optional extra `jwt`, and is imported where tokens are configured only.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from baton_gateway.errors import SERVER, Problem, RefusedError
from baton_gateway.tenancy.fetched_keys import FetchedKeys, check_url
from baton_gateway.tenancy.jwks import MAX_JWKS_BYTES, PublicKey, find_key, import_library, parse_keys
from baton_gateway.tenancy.key_files import file_versions
from baton_gateway.tenancy.token_claims import TokenRules, find_tenant, refused

MAX_TOKEN_CHARS = 8_192
LOOK_S = 1.0
"""The least time between two looks at the file for a key that is unknown."""
_NO_KEYS = Problem(
    503, SERVER, "The keys of the identity provider are not known yet; try again later.", None, "keys_unavailable", 2
)


class UnknownKeyError(RefusedError):
    """A token has a key that is unknown here: the provider may have made it since its keys were fetched."""


class SigningKeys:
    """The public keys of an identity provider by their ids, from the last valid content of a JWKS file."""

    def __init__(self, path: Path) -> None:
        """Raises ValueError that names the file, or the extra that is missing."""
        import_library()
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

    def find(self, key_id: object, now_s: float) -> PublicKey | None:
        """Find a key; None: there is none."""
        if (key := find_key(self._keys, key_id)) is not None:
            return key
        if 0 <= now_s - self._looked_s < LOOK_S:
            return None
        self._looked_s = now_s
        try:
            self.refresh()
        except ValueError:
            self._version = None  # the periodic look reports it
        return find_key(self._keys, key_id)

    def _read(self) -> dict[str, PublicKey]:
        try:
            with self._path.open("rb") as opened:
                content = opened.read(MAX_JWKS_BYTES + 1)
        except OSError as error:
            raise ValueError(f"{self._path}: {error.strerror or error}") from error
        return parse_keys(content, self._path)


class TokenVerifier:
    """Finds the tenant that a token names."""

    def __init__(self, rules: TokenRules, keys: SigningKeys | FetchedKeys) -> None:
        self._jwt: Any = import_library()
        self._rules = rules
        self.keys = keys

    def tenant_of(self, token: str, now_s: float) -> str:
        """Return the name of the tenant in a valid token. `now_s`: the wall clock. Raises RefusedError: 401, with
        UnknownKeyError where other keys may help, or 503 while no key is known."""
        if len(token) > MAX_TOKEN_CHARS:
            raise refused(f"is longer than {MAX_TOKEN_CHARS} characters")
        try:
            header: Mapping[str, object] = self._jwt.get_unverified_header(token)
        except (self._jwt.PyJWTError, ValueError, RecursionError):
            raise refused("is malformed") from None
        algorithm = header.get("alg")
        if algorithm not in self._rules.algorithms or "crit" in header:
            raise refused("is signed in a way that is not allowed here")
        key = self.keys.find(header.get("kid"), now_s)
        if key is None and not self._has_keys():
            raise UnknownKeyError(_NO_KEYS)
        if key is None:
            raise UnknownKeyError(refused("is signed with an unknown key").problem)
        if algorithm not in key.algorithms:
            raise refused("is signed with an unknown key")
        ignored = dict.fromkeys(("verify_exp", "verify_nbf", "verify_iat", "verify_aud", "verify_iss"), False)
        options = ignored | {"verify_signature": True, "verify_sub": False, "verify_jti": False}
        try:
            claims = self._jwt.decode(token, key.key, algorithms=[algorithm], options=options)
        except (self._jwt.PyJWTError, ValueError, RecursionError):
            raise refused("has a wrong signature") from None
        return find_tenant(claims, self._rules, now_s)

    def _has_keys(self) -> bool:
        return not isinstance(self.keys, FetchedKeys) or self.keys.is_known


def read_verifier(path: Path) -> TokenVerifier:
    """Build the verifier that a file of `--jwt` describes. Raises ValueError that names the file and the field."""
    try:
        rules = msgspec.json.decode(path.read_bytes(), type=TokenRules)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from error
    except msgspec.DecodeError as error:
        raise ValueError(f"{path}: {error}") from error
    if (rules.keys is None) == (rules.keys_url is None):
        raise ValueError(f"{path}: exactly one of keys and keys_url must be given")
    if rules.keys is not None:
        if rules.ca is not None:
            raise ValueError(f"{path}: ca: needs keys_url")
        return TokenVerifier(rules, SigningKeys(path.parent / rules.keys))
    assert rules.keys_url is not None
    try:
        check_url(rules.keys_url)
    except ValueError as error:
        raise ValueError(f"{path}: keys_url: {error}") from error
    ca = None if rules.ca is None else path.parent / rules.ca
    if ca is not None and not ca.is_file():
        raise ValueError(f"{path}: ca: {ca} is no file")
    import_library()
    return TokenVerifier(rules, FetchedKeys(rules.keys_url, ca))


def looks_like_token(credential: str) -> bool:
    """Return whether a credential has the form of a token. An API key may have it, too."""
    return credential.count(".") == 2 and credential.startswith("ey")
