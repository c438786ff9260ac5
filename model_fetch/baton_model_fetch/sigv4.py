"""AWS Signature Version 4 for GET requests without a body. Pure.

Follows "Authenticating Requests: Using the Authorization Header" of the Amazon S3 API Reference.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, urlsplit

_EMPTY = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True)
class AwsKey:
    access_key: str
    secret_key: str
    session_token: str | None = None


def signed_headers(
    url: str, key: AwsKey, region: str, timestamp: str, headers: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Headers that authorise a GET of `url`, which is encoded already; `timestamp` is `YYYYMMDDTHHMMSSZ`, UTC.

    The given headers are signed too and contained in the result.
    """
    parts = urlsplit(url)
    sent = {**(headers or {}), "x-amz-content-sha256": _EMPTY, "x-amz-date": timestamp}
    if key.session_token is not None:
        sent["x-amz-security-token"] = key.session_token
    signing = {name.lower(): " ".join(value.split()) for name, value in {**sent, "host": parts.netloc}.items()}
    names = ";".join(sorted(signing))
    query = sorted((quote(name, safe="~"), quote(value, safe="~")) for name, value in _query(parts.query))
    canonical = "\n".join(
        [
            "GET",
            parts.path or "/",
            "&".join(f"{name}={value}" for name, value in query),
            *(f"{name}:{signing[name]}" for name in sorted(signing)),
            "",
            names,
            _EMPTY,
        ]
    )
    scope = f"{timestamp[:8]}/{region}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", timestamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    signature = hmac.new(_signing_key(key, timestamp[:8], region), text.encode(), hashlib.sha256).hexdigest()
    authorization = f"AWS4-HMAC-SHA256 Credential={key.access_key}/{scope},SignedHeaders={names},Signature={signature}"
    return {**sent, "Authorization": authorization}


def _query(text: str) -> list[tuple[str, str]]:
    return parse_qsl(text, keep_blank_values=True)


def _signing_key(key: AwsKey, date: str, region: str) -> bytes:
    signing_key = f"AWS4{key.secret_key}".encode()
    for part in (date, region, "s3", "aws4_request"):
        signing_key = hmac.new(signing_key, part.encode(), hashlib.sha256).digest()
    return signing_key
