"""Whom the event loop's time is charged to: by a connection's first bytes, then by each request's proof."""

from __future__ import annotations

import gc
import json
from hashlib import sha256
from pathlib import Path

import pytest

from baton_gateway.http_api.loop_accounts import LoopAccounts
from baton_gateway.requests.tenant import DEFAULT_TENANT, Tenant
from baton_gateway.tenancy.tenants import Tenants

KEY_A, KEY_B = "key-of-a-0123456789", "key-of-b-0123456789"


@pytest.fixture
def tenants(tmp_path: Path) -> Tenants:
    path = tmp_path / "keys.json"
    rows = [
        {"name": name, "key_sha256": [sha256(key.encode()).hexdigest()], "weight": weight}
        for name, key, weight in (("a", KEY_A, 1.0), ("b", KEY_B, 4.0))
    ]
    path.write_text(json.dumps({"tenants": rows}))
    return Tenants(path)


@pytest.mark.parametrize(
    ("first_bytes", "account"),
    [
        (f"POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer {KEY_A}\r\n\r\n{{", "tenant a"),
        (f"POST /v1/messages HTTP/1.1\r\nHost: x\r\nx-api-key: {KEY_B}\r\nA: b", "tenant b"),
        (f"GET /v1/models HTTP/1.1\r\nAUTHORIZATION:bearer  {KEY_B} \r\n", "tenant b"),
        (f"POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer {KEY_A}", "unproven"),
        ("POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer wrong-key-0123\r\n\r\n", "unproven"),
        (f"POST /v1/completions HTTP/1.1\r\n\r\n{{Authorization: Bearer {KEY_A}\r\n", "unproven"),
        ("GET /metrics HTTP/1.1\r\n\r\n", "unproven"),
        ("GET /health/live HTTP/1.1\r\n\r\n", "probes"),
        ("GET /ping HTTP/1.1\r\n\r\n", "probes"),
        ("POST /v1/chat/comp", "unproven"),
        ("", "unproven"),
        ("\x16\x03\x01\x02", "unproven"),
    ],
)
def test_a_connection_is_charged_to_whom_its_first_bytes_name(first_bytes: str, account: str, tenants: Tenants) -> None:
    assert LoopAccounts(tenants).classify(first_bytes.encode("latin-1"), "10.0.0.1").name == account


def test_without_keys_each_source_has_an_account() -> None:
    accounts = LoopAccounts(Tenants())
    one, other = (accounts.classify(b"POST / HTTP/1.1\r\n\r\n", source) for source in ("10.0.0.1", "10.0.0.2"))
    assert (one.name, other.name) == ("address 10.0.0.1", "address 10.0.0.2")
    assert accounts.of(DEFAULT_TENANT, "10.0.0.1") is one


def test_a_tenant_has_one_account_as_long_as_anything_of_it_is_at_work(tenants: Tenants) -> None:
    accounts = LoopAccounts(tenants)
    account = accounts.of(Tenant("a"), "10.0.0.1")
    assert accounts.of(Tenant("a"), "10.0.0.9") is account
    assert accounts.classify(f"GET / HTTP/1.1\r\nX-Api-Key: {KEY_A}\r\n".encode(), "10.0.0.3") is account
    assert accounts.of(Tenant("a", weight=2.0), "10.0.0.1").weight == 2.0, "a weight that changed"
    del account
    for number in range(1_000):
        accounts.of(Tenant(f"t{number}"), "")
    gc.collect()
    assert len(accounts._accounts) == 0
