"""The claims of a token (JWT): who issued it, for whom, until when, and the tenant that one of them names. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, get_args

from msgspec import Meta, Struct

from baton_gateway.errors import INVALID, Problem, RefusedError

_TENANT = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
MAX_TIME_S = 1e15
"""Later times are refused: an integer may have more digits than a float can hold."""

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""An algorithm with a public key. One with a shared secret would let each one that can check a token make one."""
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
Text = Annotated[str, Meta(min_length=1, max_length=512)]


class TokenRules(Struct, frozen=True, forbid_unknown_fields=True):
    """The tokens that an installation accepts, as the file of `--jwt` names them."""

    issuer: Text
    audience: Text
    keys: Text | None = None
    """The path of a JWKS file, from the folder of this file."""
    keys_url: Text | None = None
    """Its https URL, in place of `keys`."""
    ca: Text | None = None
    """The path of a file with the certificate authorities of `keys_url`; None: those of the system."""
    claim: Text = "sub"
    """The claim that names the tenant."""
    algorithms: Annotated[tuple[Algorithm, ...], Meta(min_length=1)] = ALGORITHMS
    leeway_s: Annotated[float, Meta(ge=0, le=300)] = 60.0
    """How far the clocks of the issuer and of this machine may differ."""


def refused(reason: str) -> RefusedError:
    """The 401 of a token; no message repeats a part of it."""
    return RefusedError(Problem(401, INVALID, f"The token {reason}.", None, "invalid_token"))


def find_tenant(claims: Mapping[str, object], rules: TokenRules, now_s: float) -> str:
    """Return the name of the tenant in the claims of a token whose signature is right. Raises RefusedError (401)."""
    if claims.get("iss") != rules.issuer:
        raise refused("is from another issuer")
    audience = claims.get("aud")
    if rules.audience not in (audience if isinstance(audience, list) else [audience]):
        raise refused("is for another audience")
    expires_s = _time(claims, "exp")
    if expires_s is None:
        raise refused("has no time at which it expires")
    if now_s >= expires_s + rules.leeway_s:
        raise refused("has expired")
    for name in ("nbf", "iat"):
        begins_s = _time(claims, name)
        if begins_s is not None and now_s < begins_s - rules.leeway_s:
            raise refused("is not valid yet")
    tenant = claims.get(rules.claim)
    if not isinstance(tenant, str) or _TENANT.fullmatch(tenant) is None:
        raise refused(f"has no claim {rules.claim!r} with the name of a tenant")
    return tenant


def _time(claims: Mapping[str, object], name: str) -> float | None:
    """A time in seconds since 1970; None: the token has none. Raises RefusedError."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_TIME_S:
        raise refused(f"has a claim {name!r} that is no time")
    return float(value)
