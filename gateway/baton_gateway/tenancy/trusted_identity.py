"""Identity by a trusted gateway: a header that names the tenant, with a proof that only that gateway has.

The proof is a secret in a header of its own, of which the installation's file has the digest, or the certificate that
the gateway presents (mTLS). A request of anybody else that has the header is refused, whatever else it has.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta

from baton_gateway.errors import INVALID, Problem, RefusedError
from baton_gateway.requests.tenant import Digest
from baton_gateway.tenancy.key_files import file_versions

HeaderName = Annotated[str, Meta(pattern=r"^[Xx]-[A-Za-z0-9-]{1,60}$")]
"""A name with `X-`, so that no header of HTTP's own can be meant."""
MAX_FILE_BYTES = 1 << 16
_TENANT = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class IdentityRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The trusted gateway, as the file of `--trusted-identity` describes it."""

    header: HeaderName
    """The header that names the tenant."""
    proof_header: HeaderName | None = None
    """The header with the secret."""
    proof_sha256: Annotated[tuple[Digest, ...], Meta(max_length=8)] = ()
    """SHA-256 of the secrets that are accepted. Two make a rotation without an interruption."""
    client_names: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=253)], ...], Meta(max_length=64)] = ()
    """Names (DNS or URI) that the gateway's certificate has, one of them."""
    client_ca: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    """The path of a file with the authorities of such certificates, from the folder of this file."""


class Headers(Protocol):
    """The headers of a request."""

    def getall(self, key: str, default: Sequence[str]) -> Sequence[str]: ...


class TrustedIdentity:
    """The identity that a trusted gateway gives, by the last valid content of a file."""

    def __init__(self, path: Path) -> None:
        """Raises ValueError that names the file and the field."""
        self._path = path
        self._version: object = file_versions(path)
        self._rules = _read(path)

    @property
    def client_ca(self) -> Path | None:
        """The file of the authorities of gateways' certificates; None: certificates prove nothing."""
        return None if self._rules.client_ca is None else self._path.parent / self._rules.client_ca

    def refresh(self) -> bool:
        """Read the file again if it changed; returns whether it did. Raises ValueError once for each wrong content; the
        former rules stay valid then."""
        if (version := file_versions(self._path)) == self._version:
            return False
        self._version = version
        self._rules = _read(self._path)
        return True

    def tenant_of(self, headers: Headers, certificate: Mapping[str, Any] | None) -> str | None:
        """Return the name of the tenant that a trusted gateway names; None: nobody is named. `certificate`: of the
        client, verified. Raises RefusedError (401) where the header is from anybody else."""
        named = headers.getall(self._rules.header, ())
        if not named:
            return None
        if not (self._is_proven(headers) or self._is_certified(certificate)):
            raise _refused("is accepted from a trusted gateway alone")
        if len(named) != 1 or _TENANT.fullmatch(named[0]) is None:
            raise _refused("does not name one tenant")
        return named[0]

    def _is_proven(self, headers: Headers) -> bool:
        if self._rules.proof_header is None:
            return False
        proofs = headers.getall(self._rules.proof_header, ())
        if len(proofs) != 1:
            return False
        digest = hashlib.sha256(proofs[0].encode(errors="surrogateescape")).hexdigest()
        return any([hmac.compare_digest(digest, known) for known in self._rules.proof_sha256])

    def _is_certified(self, certificate: Mapping[str, Any] | None) -> bool:
        if certificate is None or self._rules.client_ca is None:
            return False
        names = {name for kind, name in certificate.get("subjectAltName", ()) if kind in ("DNS", "URI")}
        return not names.isdisjoint(self._rules.client_names)


def unknown_tenant() -> RefusedError:
    """The 401 of an identity that is proven and names no tenant."""
    return _refused("names no tenant of this service")


def trust_client_certificates(context: ssl.SSLContext, authorities: Path) -> None:
    """Have a listener ask its clients for certificates, and end connections with a wrong one. Clients without one go
    on. Raises ValueError."""
    try:
        context.load_verify_locations(cafile=str(authorities))
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"client_ca: {authorities}: {error}") from error
    context.verify_mode = ssl.CERT_OPTIONAL


def _refused(reason: str) -> RefusedError:
    return RefusedError(Problem(401, INVALID, f"The header with the identity {reason}.", None, "invalid_identity"))


def _read(path: Path) -> IdentityRules:
    try:
        with path.open("rb") as opened:
            rules = msgspec.json.decode(opened.read(MAX_FILE_BYTES), type=IdentityRules)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from error
    except msgspec.DecodeError as error:
        raise ValueError(f"{path}: {error}") from error
    if (rules.proof_header is None) != (not rules.proof_sha256):
        raise ValueError(f"{path}: proof_header and proof_sha256 need each other")
    if (rules.client_ca is None) != (not rules.client_names):
        raise ValueError(f"{path}: client_ca and client_names need each other")
    if rules.proof_header is None and rules.client_ca is None:
        raise ValueError(f"{path}: proof_header or client_ca must be given: anybody could send the header")
    if rules.proof_header is not None and rules.proof_header.lower() == rules.header.lower():
        raise ValueError(f"{path}: proof_header must differ from header")
    if rules.client_ca is not None and not (path.parent / rules.client_ca).is_file():
        raise ValueError(f"{path}: client_ca: {path.parent / rules.client_ca} is no file")
    return rules
