"""`baton key`: makes an API key of a tenant, and prints it once with the digest that its LLMTenant has."""

from __future__ import annotations

import hashlib
import secrets

KEY_BYTES = 24
"""192 random bits: too many to guess."""


def run_key(expires: str | None) -> int:
    """Print a new key, its digest, and the line for `spec.apiKeys`. Nothing keeps the key."""
    key = f"sk-{secrets.token_urlsafe(KEY_BYTES)}"
    digest = hashlib.sha256(key.encode()).hexdigest()
    more = "" if expires is None else f', expires: "{expires}"'
    print(f"key:     {key}\nsha256:  {digest}\napiKeys: [{{sha256: {digest}{more}}}]")
    return 0
