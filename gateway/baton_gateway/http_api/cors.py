"""CORS: the origins whose pages may call this API from a browser. None may by default."""

from __future__ import annotations

from collections.abc import Sequence

ANY = "*"
MAX_AGE_S = 600
PREFLIGHT_HEADER = "Access-Control-Request-Method"
_ALLOWED_HEADERS = "Authorization, Content-Type, X-Request-Id"
_EXPOSED_HEADERS = (
    "X-Request-Id, X-Baton-Ignored, Retry-After, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, "
    "x-ratelimit-reset-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens"
)


def is_origin(text: str) -> bool:
    """Return True for `*`, or SCHEME://HOST[:PORT] as browsers write it, without a path, spaces or commas."""
    scheme, separator, host = text.partition("://")
    if text == ANY:
        return True
    is_plain = host.isascii() and host.isprintable() and not set(host) & set(" ,/?#@\\\"'")
    return bool(separator) and scheme in ("http", "https") and 0 < len(host) <= 253 and is_plain


def cors_headers(origin: str | None, allowed: Sequence[str]) -> dict[str, str]:
    """Return the CORS headers of answers to pages of this origin, if it is allowed.

    Browsers' credentials are never allowed: API keys come in a header that the page sets.
    """
    if not allowed:
        return {}
    vary = {"Vary": "Origin"}
    if ANY in allowed:
        return {"Access-Control-Allow-Origin": ANY, "Access-Control-Expose-Headers": _EXPOSED_HEADERS}
    if origin is None or origin not in allowed:
        return vary
    return vary | {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": _EXPOSED_HEADERS}


def preflight_headers(methods: Sequence[str]) -> dict[str, str]:
    """Return the headers of the answer to a preflight request."""
    return {
        "Access-Control-Allow-Methods": ", ".join(methods),
        "Access-Control-Allow-Headers": _ALLOWED_HEADERS,
        "Access-Control-Max-Age": str(MAX_AGE_S),
    }
