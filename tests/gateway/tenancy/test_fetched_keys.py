"""Keys of an identity provider by URL: fetched with bounds, kept while it is away, and of the provider alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from baton_gateway.errors import RefusedError
from baton_gateway.tenancy import fetched_keys
from baton_gateway.tenancy.fetched_keys import FetchedKeys, check_url
from baton_gateway.tenancy.jwks import MAX_JWKS_BYTES
from baton_gateway.tenancy.tenants import Tenants
from baton_gateway.tenancy.token_verifier import read_verifier
from baton_testing.fetch.tunnel_proxy import private_certificate
from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import running_gateway, until
from baton_testing.gateway.issuer import CLAIMS, NOW, Issuer, write_token_rules
from baton_wire.tenant_table import TenantRow, TenantShard, encode_shard

pytestmark = pytest.mark.skipif(not pytest.importorskip("jwt"), reason="the extra 'jwt' is not installed")


@dataclass
class Provider:
    """An identity provider that serves its keys over HTTPS."""

    folder: Path
    url: str = ""
    keys: list[dict[str, Any]] = field(default_factory=list)
    answer: web.Response | None = None
    """In place of the keys."""
    is_slow: bool = False
    asked: int = 0

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked += 1
        if self.is_slow:
            await asyncio.sleep(60)
        return web.json_response({"keys": self.keys}) if self.answer is None else self.answer


@asynccontextmanager
async def serving(folder: Path, *keys: dict[str, Any]) -> AsyncIterator[Provider]:
    provider = Provider(folder / "tls", keys=list(keys))
    context = await asyncio.to_thread(private_certificate, provider.folder, "localhost")
    runner = web.ServerRunner(web.Server(provider.handle), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "localhost", 0, ssl_context=context)
    await site.start()
    port = runner.addresses[0][1]
    provider.url = f"https://localhost:{port}/jwks.json"
    try:
        yield provider
    finally:
        await runner.cleanup()


def tenants(folder: Path, provider: Provider) -> Tenants:
    config = write_token_rules(folder, keys=None, keys_url=provider.url, ca=str(provider.ca))
    known = Tenants(table=folder / "table", tokens=read_verifier(config))
    known.apply(TenantShard(0, 1, (TenantRow("red"),)))
    return known


async def test_a_new_key_is_fetched_when_a_token_has_it_and_made_up_ids_make_no_flood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = Issuer("old"), Issuer("new")
    async with serving(tmp_path, old.public()) as provider:
        known = tenants(tmp_path, provider)
        with pytest.raises(RefusedError, match="not known yet") as refusal:
            known.authenticate(f"Bearer {old.sign()}", NOW)
        assert (refusal.value.problem.status, refusal.value.problem.code) == (503, "keys_unavailable")
        assert await known.look_for_keys()
        assert known.authenticate(f"Bearer {old.sign()}", NOW).name == "red"
        provider.keys.append(new.public())
        with pytest.raises(RefusedError, match="unknown key"):
            known.authenticate(f"Bearer {new.sign()}", NOW)
        assert not await known.look_for_keys(), "the last fetch was a moment ago"
        monkeypatch.setattr(fetched_keys, "UNKNOWN_S", 0.0)
        assert await asyncio.gather(*(known.look_for_keys() for _ in range(50))) == [True] * 50
        assert provider.asked == 2, "fifty wait for one fetch"
        assert known.authenticate(f"Bearer {new.sign()}", NOW).name == "red"


async def test_the_last_good_keys_stay_while_the_provider_is_away_or_answers_nonsense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetched_keys, "UNKNOWN_S", 0.0)
    monkeypatch.setattr(fetched_keys, "FETCH_S", 2.0)
    issuer = Issuer("one")
    async with serving(tmp_path, issuer.public()) as provider:
        known = tenants(tmp_path, provider)
        await known.look_for_keys()
        elsewhere = {"Location": "https://elsewhere.example/jwks.json"}
        for answer in (
            web.Response(status=500),
            web.Response(status=404, text=json.dumps({"keys": [Issuer("x").public()]})),
            web.Response(status=302, headers=elsewhere),
            web.Response(text="<html>"),
            web.Response(text='{"keys": []}'),
            web.Response(text='{"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "one"}]}'),
            web.Response(text="[" * 100_000),
            web.Response(text=" " * (MAX_JWKS_BYTES + 1)),
            web.Response(body=b"\x1f\x8b", headers={"Content-Encoding": "gzip"}),
        ):
            provider.answer = answer
            await known.look_for_keys()
            assert known.authenticate(f"Bearer {issuer.sign()}", NOW).name == "red"
        provider.is_slow = True
        monkeypatch.setattr(fetched_keys, "FETCH_S", 0.2)
        await known.look_for_keys()
    await known.look_for_keys()
    assert known.authenticate(f"Bearer {issuer.sign()}", NOW).name == "red"


async def test_a_key_that_the_provider_removes_is_refused_after_the_next_fetch(tmp_path: Path) -> None:
    old, new = Issuer("old"), Issuer("new")
    async with serving(tmp_path, old.public()) as provider:
        known = tenants(tmp_path, provider)
        keeping = asyncio.create_task(known.keep_keys())
        await until(lambda: provider.asked == 1)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        provider.keys[:] = [new.public()]
        keys = FetchedKeys(provider.url, provider.ca)
        await keys.look_again()
        assert keys.find("old", NOW) is None
        assert keys.find("new", NOW) is not None


async def test_a_provider_of_another_authority_or_name_is_not_believed(tmp_path: Path) -> None:
    async with serving(tmp_path, Issuer("one").public()) as provider:
        for keys in (
            FetchedKeys(provider.url),
            FetchedKeys(provider.url.replace("localhost", "127.0.0.1"), provider.ca),
        ):
            await keys.look_again()
            assert not keys.is_known
            assert "certificate" in keys.problem.lower()


@pytest.mark.parametrize("url", ["http://id.example/k", "https://", "https://a:b@id.example/k", "file:///etc/x",
                                 "https://id.example/k#x", "https://id.example:99999/", "x"])  # fmt: skip
def test_keys_come_over_https_alone(url: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be a URL such as https://"):
        check_url(url)
    with pytest.raises(ValueError, match="keys_url"):
        read_verifier(write_token_rules(tmp_path, keys=None, keys_url=url))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"keys": "a.json", "keys_url": "https://id.example/"}, "exactly one"),
        ({"keys": None}, "exactly one"),
        ({"keys": "a.json", "ca": "ca.crt"}, "ca: needs keys_url"),
        ({"keys": None, "keys_url": "https://id.example/", "ca": "none.crt"}, "is no file"),
    ],
)
def test_a_wrong_source_of_keys_is_refused_by_field(fields: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=problem):
        read_verifier(write_token_rules(tmp_path, **fields))


async def test_a_request_with_a_new_key_waits_for_one_fetch_and_forged_ones_are_401(
    pool: FakePool, http: aiohttp.ClientSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetched_keys, "UNKNOWN_S", 0.0)
    old, new, other = Issuer("old"), Issuer("new"), Issuer("old")
    claims = CLAIMS | {"exp": 1e11}
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "tenants-0.json").write_bytes(encode_shard(TenantShard(0, 1, (TenantRow("red"),))))
    async with serving(tmp_path, old.public()) as provider:
        config = write_token_rules(tmp_path, keys=None, keys_url=provider.url, ca=str(provider.ca))
        async with running_gateway(pool, f"--tenants={tmp_path / 'table'}", f"--jwt={config}") as gateway:

            async def ask(token: str) -> int:
                headers = {"Authorization": f"Bearer {token}"}
                async with http.get(gateway.url("/v1/models"), headers=headers) as got:
                    return got.status

            assert await ask(old.sign(claims)) == 200
            provider.keys.append(new.public())
            assert await ask(new.sign(claims)) == 200
            forged = (other.sign(claims), old.sign(claims | {"aud": "other"}), old.sign(claims | {"exp": 1}))
            assert [await ask(token) for token in forged] == [401] * 3
