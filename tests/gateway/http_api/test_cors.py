"""Pages in browsers may call where their origins are named, and nowhere else."""

from __future__ import annotations

import aiohttp
import pytest

from baton_gateway.http_api.cors import cors_headers, is_origin
from baton_gateway.settings import SettingsError, parse_settings
from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import RunningGateway, running_gateway
from baton_testing.gateway.http_client import CHAT, USER

HERE, ELSEWHERE = "https://chat.example", "https://evil.example"
ALLOW = "Access-Control-Allow-Origin"
PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}


@pytest.mark.parametrize("text", ["*", "https://a.example", "http://localhost:3000", "http://[::1]:80"])
def test_what_is_an_origin(text: str) -> None:
    assert is_origin(text)


@pytest.mark.parametrize(
    "text", ["", "a.example", "https://", "https://a/", "https://a?x", "ftp://a", "https://a b", "null", "https://a@b"]
)
def test_what_is_none(text: str) -> None:
    assert not is_origin(text)
    if text:
        flags = ["--keys=k", "--prefill-discovery=file:a", "--decode-discovery=file:b", f"--allowed-origins={text}"]
        with pytest.raises(SettingsError, match="--allowed-origins"):
            parse_settings(flags)


def test_any_origin_is_answered_alike_and_a_named_one_by_name() -> None:
    assert cors_headers(HERE, ()) == {}
    assert cors_headers(HERE, ("*",))[ALLOW] == cors_headers(None, ("*",))[ALLOW] == "*"
    assert cors_headers(HERE, (HERE,))[ALLOW] == HERE
    assert cors_headers(ELSEWHERE, (HERE,)) == cors_headers(None, (HERE,)) == {"Vary": "Origin"}


async def test_without_origins_there_is_no_word_of_them(gateway: RunningGateway, http: aiohttp.ClientSession) -> None:
    async with http.options(gateway.url(CHAT), headers=PREFLIGHT | {"Origin": HERE}) as got:
        assert got.status == 405
        assert ALLOW not in got.headers
    async with http.get(gateway.url("/v1/models"), headers={"Origin": HERE}) as got:
        assert ALLOW not in got.headers


async def test_a_page_of_a_named_origin_asks_first_and_is_then_answered(
    pool: FakePool, http: aiohttp.ClientSession
) -> None:
    async with running_gateway(pool, f"--allowed-origins={HERE}, http://localhost:3000") as gateway:
        async with http.options(gateway.url(CHAT), headers=PREFLIGHT | {"Origin": HERE}) as got:
            assert (got.status, got.headers[ALLOW], got.headers["Access-Control-Allow-Methods"]) == (204, HERE, "POST")
            assert "Authorization" in got.headers["Access-Control-Allow-Headers"]
        for stream in (False, True):
            body = {"model": "tiny", "messages": USER, "stream": stream}
            async with http.post(gateway.url(CHAT), json=body, headers={"Origin": HERE}) as got:
                assert (got.status, got.headers[ALLOW], got.headers["Vary"]) == (200, HERE, "Origin")
        async with http.post(gateway.url(CHAT), json={}, headers={"Origin": HERE}) as got:
            assert (got.status, got.headers[ALLOW]) == (400, HERE), "a page may read why"
        async with http.options(gateway.url(CHAT), headers=PREFLIGHT | {"Origin": ELSEWHERE}) as got:
            assert ALLOW not in got.headers
        async with http.options(gateway.url("/nowhere"), headers=PREFLIGHT | {"Origin": HERE}) as got:
            assert got.status == 404
        async with http.options(gateway.url(CHAT), headers={"Origin": HERE}) as got:
            assert got.status == 405, "no preflight"
