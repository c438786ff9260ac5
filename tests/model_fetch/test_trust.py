"""Limits of what a source can make a fetch do: nothing inside the cluster, no foreign secret, no more bytes than
fit."""

from __future__ import annotations

import asyncio
import gzip
import io
import socket
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from baton_model_fetch import cache_volume
from baton_model_fetch import web as fetch_web
from baton_model_fetch.addresses import PrivateAddressError, is_public, public_socket
from baton_model_fetch.credentials import Credentials, begins
from baton_model_fetch.errors import Damaged, SourceRefused
from baton_model_fetch.registry import token_server
from baton_testing.fetch.local_server import serving

Handler = Callable[[web.Request], web.StreamResponse]
PRIVATE = (
    "127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
    "255.255.255.255", "::1", "::", "fe80::1%eth0", "fd00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2002:a00:1::1",
)  # fmt: skip


@pytest.mark.parametrize("address", PRIVATE)
def test_no_address_inside_is_dialled(address: str) -> None:
    assert not is_public(address)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with pytest.raises(PrivateAddressError, match="is not a public address"):
        public_socket((family, socket.SOCK_STREAM, 6, "", (address, 443)))


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8"])
def test_public_addresses_are_dialled(address: str) -> None:
    assert is_public(address)


async def got(url: str, own: tuple[str, ...] = (), **headers: str) -> bytes:
    async with fetch_web.session(own) as session:
        return (await fetch_web.text(session, url, headers))[0]


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "169.254.169.254", "localhost"])
async def test_an_address_inside_is_refused_however_it_is_named(host: str) -> None:
    with pytest.raises(SourceRefused, match="is not a public address: name its host"):
        await got(f"https://{host}:1/latest/meta-data")
    with pytest.raises(SourceRefused, match="not asked without TLS"):
        await got(f"http://{host}:1/latest/meta-data")


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "0177.0.0.1"])
async def test_other_spellings_of_addresses_are_not_asked(host: str) -> None:
    with pytest.raises(SourceRefused):
        await got(f"https://{host}:1/latest/meta-data")


async def test_a_redirect_inside_is_refused_before_anything_is_asked_there() -> None:
    asked: list[str] = []

    def inside(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        return web.Response(text="INTERNAL-SECRET")

    async with serving(inside) as secret:

        def source(request: web.Request) -> web.StreamResponse:
            raise web.HTTPFound({"/tls": secret.replace("http:", "https:"), "/plain": secret}[request.path])

        async with serving(source, "127.0.0.2") as url:
            with pytest.raises(SourceRefused, match=r"127\.0\.0\.1 is not a public address"):
                await got(f"{url}/tls", ("127.0.0.2",))
            with pytest.raises(SourceRefused, match="not asked without TLS"):
                await got(f"{url}/plain", ("127.0.0.2",))
            assert asked == []
            assert await got(f"{url}/plain", ("127.0.0.2", "127.0.0.1")) == b"INTERNAL-SECRET", "where it is named"


async def test_secrets_stay_with_the_server_that_was_asked_first() -> None:
    seen: list[dict[str, str]] = []

    def other(request: web.Request) -> web.StreamResponse:
        seen.append({name: request.headers[name] for name in request.headers if name.lower() not in OF_HTTP})
        return web.Response()

    async with serving(other) as there:

        def source(request: web.Request) -> web.StreamResponse:
            raise web.HTTPTemporaryRedirect(there)

        async with serving(source, "127.0.0.2") as url:
            headers = {"Authorization": "x", "x-amz-security-token": "y", "Cookie": "z", "Range": "bytes=5-"}
            await got(url, ("127.0.0.1", "127.0.0.2"), **headers)
    assert seen == [{"Range": "bytes=5-"}]


OF_HTTP = {"host", "accept", "accept-encoding", "user-agent"}


async def test_redirects_end() -> None:
    def source(request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound(request.path + "x")

    async with serving(source) as url:
        with pytest.raises(SourceRefused, match="over 5 redirects"):
            await got(f"{url}/", ("127.0.0.1",))


HTTPS, HTTP = "https://reg.example.com/v2/a/b/manifests/x", "http://10.0.0.5:5000/v2/a/b/manifests/x"


@pytest.mark.parametrize(
    ("realm", "registry"),
    [
        ("https://reg.example.com/token", HTTPS),
        ("https://reg.example.com:5001/token?x=y", HTTPS),
        ("https://auth.friend.org/token", HTTPS),
        ("http://10.0.0.5:5000/token", HTTP),
        ("https://10.0.0.5/token", HTTP),
    ],
)
def test_a_token_is_asked_for_at_the_registrys_own_place(realm: str, registry: str) -> None:
    assert token_server(realm, registry, ("auth.friend.org",)) == realm


@pytest.mark.parametrize(
    "realm",
    [
        "http://reg.example.com/token",
        "http://127.0.0.1:8080/metadata/identity/token?resource=x",
        "https://evil.org/token",
        "https://reg.example.com.evil.org/token",
        "https://reg.example.com@evil.org/token",
        "https://evil.org#reg.example.com",
        "http://auth.friend.org/token",
        "ftp://reg.example.com/token",
        "//evil.org/token",
        "token",
        "",
        "https://[",
    ],
)
def test_a_token_is_asked_for_nowhere_else(realm: str) -> None:
    with pytest.raises(SourceRefused):
        token_server(realm, HTTPS, ("auth.friend.org",))


def secret(folder: Path, **files: str) -> Credentials:
    for name, content in files.items():
        (folder / name).write_text(content)
    return Credentials(folder)


SOURCE = "oci://reg.example.com/team/model@sha256:" + "a" * 64


def test_a_secret_that_was_not_made_for_fetching_is_refused(tmp_path: Path) -> None:
    credentials = secret(tmp_path, username="root", password="hunter2")
    with pytest.raises(SourceRefused, match=r"the credentials are for nothing: .*'sources'") as refused:
        credentials.check(SOURCE)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "sources", ["oci://reg.example.com", "oci://reg.example.com/team/", "hf://a\noci://reg.example.com/team/model"]
)
def test_credentials_are_for_the_sources_that_they_name(tmp_path: Path, sources: str) -> None:
    credentials = secret(tmp_path, sources=sources)
    credentials.check(SOURCE)
    Credentials(None).check(SOURCE)
    for other in ("oci://reg.example.com.evil.org/team/model@x", "oci://evil.org/x@y", "s3://bucket/team"):
        with pytest.raises(SourceRefused, match="the credentials are for"):
            credentials.check(other)


def test_user_and_password_go_to_the_registry_that_is_named_with_them(tmp_path: Path) -> None:
    credentials = secret(tmp_path, username="me", password="pass", sources="oci://reg.example.com/team\noci://")
    assert credentials.registry_login("reg.example.com") == ("me", "pass")
    with pytest.raises(SourceRefused, match=r"not for evil\.org"):
        credentials.registry_login("evil.org")


def test_a_beginning_ends_where_a_name_does() -> None:
    assert begins("s3://bucket/models/tiny", "s3://bucket/models")
    assert not begins("s3://bucket/models-of-others/tiny", "s3://bucket/models")
    assert not begins("s3://bucket/models", "s3")
    assert not begins("s3://bucket/models", "")


def bomb(into: Path, header: bool) -> Path:
    """A few dozen KB that unpack to 64 MiB: of a file, or of a header that tar reads into memory."""
    plain = io.BytesIO()
    size = 64 << 20
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo("config.json")
        if header:
            member.pax_headers = {"comment": "x" * size}
            archive.addfile(member)
        else:
            member.size = size
            archive.addfile(member, io.BytesIO(bytes(size)))
    path = into / "layer.tar"
    path.write_bytes(gzip.compress(plain.getvalue(), 9))
    assert path.stat().st_size < 100_000
    return path


@pytest.mark.parametrize("header", [False, True])
def test_an_archive_that_grows_beyond_reason_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: bool
) -> None:
    monkeypatch.setattr(cache_volume, "SLACK_BYTES", 1 << 20)
    archive = bomb(tmp_path, header)
    (tmp_path / "into").mkdir()
    with pytest.raises(SourceRefused, match="unpacks to over"):
        cache_volume.extract(archive, tmp_path / "into")
    assert sum(path.stat().st_size for path in (tmp_path / "into").rglob("*")) < 2 << 20


def test_a_broken_archive_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "layer.tar"
    whole = gzip.compress(zlib.compress(bytes(1000)) * 50)
    for content in (b"no tar", whole[:-9], b"\x1f\x8b" + bytes(30)):
        path.write_bytes(content)
        with pytest.raises(Damaged):
            cache_volume.extract(path, tmp_path)


async def test_a_challenge_brings_home_no_secret_of_another_server(tmp_path: Path) -> None:
    """The registry names a place inside for its tokens; nothing is asked there."""
    asked: list[str] = []

    def inside(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        return web.json_response({"access_token": "INTERNAL-SECRET-TOKEN"})

    async with serving(inside) as metadata:

        def registry(request: web.Request) -> web.StreamResponse:
            assert "INTERNAL" not in request.headers.get("Authorization", "")
            challenge = f'Bearer realm="{metadata}/identity/token?resource=x"'
            return web.Response(status=401, headers={"WWW-Authenticate": challenge})

        async with serving(registry, "127.0.0.2") as url:
            credentials = secret(tmp_path, endpoint=url, sources="oci://reg.example.com")
            with pytest.raises(SourceRefused, match=r"wants a token asked for at .*, which is not its own"):
                await fetch(SOURCE, tmp_path / "cache", credentials)
    assert asked == []


async def fetch(source: str, cache: Path, credentials: Credentials) -> Any:
    from baton_model_fetch.fetching import fetch

    await asyncio.wait_for(fetch(source, cache_volume.ModelFolder(cache, "model"), credentials), 30)
