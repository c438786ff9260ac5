"""Identity by a trusted gateway's header: from that gateway alone, and a header from nobody lets nobody in."""

from __future__ import annotations

import asyncio
import hashlib
import json
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from baton_gateway.settings import SettingsError, parse_settings
from baton_gateway.tenancy.trusted_identity import TrustedIdentity
from baton_testing.fetch.tunnel_proxy import private_certificate
from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import RunningGateway, running_gateway
from baton_wire.tenant_table import TenantKey, TenantRow, TenantShard, encode_shard

SECRET = "secret-of-the-trusted-gateway"
DIGEST = hashlib.sha256(SECRET.encode()).hexdigest()
BY_SECRET: dict[str, Any] = {"header": "X-Tenant", "proof_header": "X-Tenant-Proof", "proof_sha256": [DIGEST]}
KEY = {"Authorization": "Bearer key-of-a"}


def flags(folder: Path, **rules: Any) -> tuple[str, str]:
    """The flags of a gateway with the tenants a, who has a key, and b, who has none."""
    key = TenantKey(hashlib.sha256(b"key-of-a").hexdigest())
    rows = TenantRow("a", (key,), models=("tiny",)), TenantRow("b", models=("other",))
    (folder / "tenants-0.json").write_bytes(encode_shard(TenantShard(0, 1, rows)))
    (folder / "identity").write_text(json.dumps(rules))
    return f"--tenants={folder}", f"--trusted-identity={folder / 'identity'}"


async def ask(
    gateway: RunningGateway, http: aiohttp.ClientSession, headers: dict[str, str] | list[tuple[str, str]]
) -> tuple[int, str | None, list[str]]:
    """Status, code and the models that the tenant may ask."""
    async with http.get(gateway.url("/v1/models"), headers=headers) as got:
        body = await got.json()
        return got.status, body.get("error", {}).get("code"), [model["id"] for model in body.get("data", ())]


async def test_a_trusted_gateway_names_the_tenant_and_a_header_from_nobody_lets_nobody_in(
    pool: FakePool, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with running_gateway(pool, *flags(tmp_path, **BY_SECRET)) as gateway:
        proof = {"X-Tenant-Proof": SECRET}
        assert await ask(gateway, http, {"X-Tenant": "a"} | proof) == (200, None, ["tiny"])
        assert await ask(gateway, http, {"x-tenant": "b"} | proof | KEY) == (200, None, []), "not the key's tenant"
        assert await ask(gateway, http, KEY) == (200, None, ["tiny"])
        refused: list[dict[str, str] | list[tuple[str, str]]] = [
            {"X-Tenant": "a"},
            {"X-Tenant": "b"} | KEY,
            {"X-Tenant": "a"} | KEY,
            {"X-Tenant": ""} | KEY,
            {"X-Tenant": "a", "X-Tenant-Proof": DIGEST},
            {"X-Tenant": "a", "X-Tenant-Proof": ""},
            {"X-Tenant": "a", "X-Tenant-Proof": SECRET + " x"},
            [("X-Tenant", "a"), ("X-Tenant-Proof", SECRET), ("X-Tenant-Proof", "x")],
            [("X-Tenant", "a"), ("X-Tenant", "b"), ("X-Tenant-Proof", SECRET)],
            {"X-Tenant": "a, b"} | proof,
            {"X-Tenant": "*shared"} | proof,
            {"X-Tenant": "nobody"} | proof,
        ]
        for headers in refused:
            assert (await ask(gateway, http, headers))[:2] == (401, "invalid_identity"), headers
        assert (await ask(gateway, http, proof))[:2] == (401, "invalid_api_key"), "a proof names nobody"


async def test_without_a_trusted_gateway_such_a_header_means_nothing(
    pool: FakePool, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with running_gateway(pool, flags(tmp_path)[0]) as gateway:
        assert (await ask(gateway, http, {"X-Tenant": "a", "X-Tenant-Proof": SECRET}))[:2] == (401, "invalid_api_key")
        assert await ask(gateway, http, {"X-Tenant": "b"} | KEY) == (200, None, ["tiny"])


async def test_a_changed_secret_counts_without_a_restart(
    pool: FakePool, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with running_gateway(pool, *flags(tmp_path, **BY_SECRET)) as gateway:
        other = hashlib.sha256(b"another-secret").hexdigest()
        flags(tmp_path, **BY_SECRET | {"proof_sha256": [other]})
        gateway.server.tenants.refresh()
        assert (await ask(gateway, http, {"X-Tenant": "a", "X-Tenant-Proof": SECRET}))[0] == 401
        assert (await ask(gateway, http, {"X-Tenant": "a", "X-Tenant-Proof": "another-secret"}))[0] == 200
        (tmp_path / "identity").write_text("{}")
        with pytest.raises(ValueError, match="header"):
            gateway.server.tenants.refresh()
        assert (await ask(gateway, http, {"X-Tenant": "a", "X-Tenant-Proof": "another-secret"}))[0] == 200


async def test_a_gateways_certificate_is_a_proof_and_anothers_is_none(pool: FakePool, tmp_path: Path) -> None:
    for name in ("server", "trusted", "stranger", "other"):
        host = "edge.example" if name in ("trusted", "stranger") else "localhost"
        await asyncio.to_thread(private_certificate, tmp_path / name, host)
    tls = tmp_path / "tls"
    tls.mkdir()
    (tls / "tls.crt").write_bytes((tmp_path / "server" / "host.crt").read_bytes())
    (tls / "tls.key").write_bytes((tmp_path / "server" / "host.key").read_bytes())
    both = (tmp_path / "trusted" / "ca.crt").read_text() + (tmp_path / "other" / "ca.crt").read_text()
    (tmp_path / "clients.crt").write_text(both)
    rules = {"header": "X-Tenant", "client_ca": "clients.crt", "client_names": ["edge.example"]}
    async with running_gateway(pool, *flags(tmp_path, **rules), f"--tls={tls}") as gateway:

        async def status(client: str | None) -> int:
            context = ssl.create_default_context(cafile=str(tmp_path / "server" / "ca.crt"))
            if client is not None:
                context.load_cert_chain(tmp_path / client / "host.crt", tmp_path / client / "host.key")
            url = f"https://localhost:{gateway.port}/v1/models"
            connector = aiohttp.TCPConnector(ssl=context)
            async with (
                aiohttp.ClientSession(connector=connector) as session,
                session.get(url, headers={"X-Tenant": "a"}) as got,
            ):
                return got.status

        assert await status("trusted") == 200
        assert await status(None) == 401
        assert await status("other") == 401, "an authority that is trusted, and another name"
        with pytest.raises((aiohttp.ClientError, OSError)):
            await status("stranger")


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ({"header": "X-Tenant"}, "anybody could send the header"),
        (BY_SECRET | {"header": "Authorization"}, "header"),
        (BY_SECRET | {"proof_header": "x-tenant"}, "must differ"),
        (BY_SECRET | {"proof_sha256": [SECRET]}, "proof_sha256"),
        (BY_SECRET | {"proof_sha256": []}, "need each other"),
        ({"header": "X-Tenant", "proof_sha256": [DIGEST]}, "need each other"),
        ({"header": "X-Tenant", "client_ca": "none.crt"}, "need each other"),
        ({"header": "X-Tenant", "client_ca": "none.crt", "client_names": ["a"]}, "is no file"),
        (BY_SECRET | {"secret": SECRET}, "secret"),
    ],
)
def test_a_wrong_file_is_refused_by_field(rules: dict[str, Any], problem: str, tmp_path: Path) -> None:
    flags(tmp_path, **rules)
    with pytest.raises(ValueError, match=problem):
        TrustedIdentity(tmp_path / "identity")


def test_the_header_needs_a_table_of_tenants(tmp_path: Path) -> None:
    given = [f"--keys={tmp_path}", "--prefill-discovery=file:x", "--decode-discovery=file:x", "--trusted-identity=x"]
    with pytest.raises(SettingsError, match="--tenants"):
        parse_settings(given)
