"""A fetch through the installation's proxy and with its private CA, as the program of a Job: on loopback."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import web as aiohttp_web

from baton_model_fetch import web as fetch_web
from baton_model_fetch.errors import SourceRefused
from baton_testing.fake_hub import REPOSITORY, FakeHub, served
from baton_testing.fetch.local_server import serving
from baton_testing.fetch.tunnel_proxy import TunnelProxy, private_certificate, tunnelling

COMMIT = "a" * 40
FILES = {"config.json": b"{}", "model.safetensors": bytes(5000)}


@dataclass
class Outside:
    """The public hub's name, served on loopback by a certificate of a private CA, at the end of a proxy."""

    hub: FakeHub
    proxy: TunnelProxy
    ca: Path
    folder: Path

    def run(self, **env: str) -> tuple[int, str]:
        """Exit status and last line of the program, run once without pauses between its own tries."""
        source = f"hf://{REPOSITORY}@{COMMIT}"
        start = "import sys; from baton_model_fetch import __main__ as p, download as d; d.FIRST_PAUSE_S = 0; "
        argv = [sys.executable, "-c", f"{start}sys.exit(p.main())", f"--source={source}", "--key=model"]
        kept = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        done = subprocess.run(
            [*argv, f"--cache={self.folder / 'cache'}"],
            env={**kept, **env}, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        return done.returncode, done.stderr.splitlines()[-1]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ca")
    private_certificate(folder, "huggingface.co")
    return folder


@pytest.fixture
def outside(certificate: Path, tmp_path: Path) -> Iterator[Outside]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "host.crt", certificate / "host.key")
    with ExitStack() as stack:
        hub = stack.enter_context(served(FakeHub(FILES), context))
        port = int(hub.address.rpartition(":")[2])
        proxy = stack.enter_context(tunnelling(TunnelProxy(("127.0.0.1", port))))
        yield Outside(hub, proxy, certificate / "ca.crt", tmp_path)


def test_the_proxy_and_the_ca_of_the_environment_bring_the_model(outside: Outside) -> None:
    status, last = outside.run(HTTPS_PROXY=outside.proxy.url, SSL_CERT_FILE=str(outside.ca))
    assert status == 0, last
    assert set(outside.proxy.asked) == {"huggingface.co:443"}
    assert (outside.folder / "cache" / "model" / "model.safetensors").read_bytes() == FILES["model.safetensors"]


def test_a_certificate_of_an_unknown_authority_is_refused(outside: Outside) -> None:
    status, last = outside.run(HTTPS_PROXY=outside.proxy.url)
    assert status == 3
    assert "refused: https://huggingface.co/" in last
    assert "certificate verify failed" in last
    assert "fetch.caBundle" in last
    assert outside.hub.seen == []


@pytest.mark.parametrize(("answer", "status"), [(407, 3), (403, 3), (502, 1), (503, 1)])
def test_a_proxy_that_says_no_is_named(outside: Outside, answer: int, status: int) -> None:
    outside.proxy.status = answer
    ended, last = outside.run(HTTPS_PROXY=outside.proxy.url, SSL_CERT_FILE=str(outside.ca))
    assert (ended, f"HTTP {answer}" in last, "proxy" in last) == (status, True, True), last


def test_a_proxy_that_is_away_is_tried_again_and_named_without_its_password(outside: Outside) -> None:
    status, last = outside.run(HTTPS_PROXY="http://user:secret@127.0.0.1:9")
    assert (status, "127.0.0.1:9" in last, "secret" in last) == (1, True, False), last


INSIDE = (
    "https://169.254.169.254/latest/meta-data", "https://10.96.0.1/", "https://[::1]/", "https://[::ffff:10.0.0.1]/",
    "https://2130706433/", "https://0x7f.1/", "https://localhost/", "https://kubernetes/",
    "https://kubernetes.default.svc/", "https://kubernetes.default.svc./", "https://a.b.svc.cluster.local/",
    "https://metadata.google" + ".internal/", "https://printer.local/", "https://x.localhost/",
)  # fmt: skip


@pytest.mark.parametrize("url", INSIDE)
async def test_a_source_cannot_send_the_proxy_inside(
    certificate: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a source or a redirect names is judged before the proxy is asked, where its name tells."""
    with tunnelling(TunnelProxy(("127.0.0.1", 9))) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        for name in ("NO_PROXY", "no_proxy", "https_proxy"):
            monkeypatch.delenv(name, raising=False)
        async with fetch_web.session() as session:
            with pytest.raises(SourceRefused, match="name its host in the credentials' hosts"):
                await asyncio.wait_for(fetch_web.text(session, url, {}), 20)
    assert proxy.asked == []


async def test_hosts_that_the_proxy_must_not_see_are_dialled_at_public_addresses_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "10.0.0.0/8,.example.com,127.0.0.2")
    async with fetch_web.session() as session:
        with pytest.raises(SourceRefused, match="is not a public address"):
            await fetch_web.text(session, "https://127.0.0.2:1/", {})


REASONS = {
    "bucket": (
        '<?xml version="1.0"?><Error><Code>RequestTimeTooSkewed</Code><Message>The difference between the request time '
        "and the current time is too large.</Message></Error>",
        {},
        "HTTP 403: no access (RequestTimeTooSkewed: The difference between",
    ),
    "hub": (
        "",
        {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to model org/x is restricted."},
        "HTTP 403: no access (GatedRepo: Access to model org/x is restricted.)",
    ),
    "registry": (
        '{"errors":[{"code":"DENIED","message":"requested access to the resource is denied"}]}',
        {},
        "HTTP 403: no access (DENIED: requested access to the resource is denied)",
    ),
    "hub's JSON": ('{"error":"Invalid username or password."}', {}, "(Invalid username or password.)"),
    "a page": ("<html>" + "x" * 9000, {}, "HTTP 403: no access"),
    "evil": ('{"error":"\x1b[2Jx\u202ey"}', {}, "([2Jxy)"),
}


@pytest.mark.parametrize("kind", REASONS)
async def test_the_servers_own_reason_is_told_with_the_status(kind: str) -> None:
    body, headers, says = REASONS[kind]

    def refuse(request: aiohttp_web.Request) -> aiohttp_web.StreamResponse:
        return aiohttp_web.Response(status=403, text=body, headers=headers)

    async with serving(refuse) as url, fetch_web.session(("127.0.0.1",)) as session:
        with pytest.raises(SourceRefused) as caught:
            await fetch_web.text(session, f"{url}/x?X-Amz-Signature=secret", {})
    assert says in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300
    assert "secret" not in str(caught.value)


async def test_a_refusal_behind_a_redirect_names_the_host_that_refused() -> None:
    """The hub's bodies come from other hosts, which a firewall may not know."""

    def refuse(request: aiohttp_web.Request) -> aiohttp_web.StreamResponse:
        return aiohttp_web.Response(status=403)

    async with serving(refuse, "127.0.0.2") as store:

        def hub(request: aiohttp_web.Request) -> aiohttp_web.StreamResponse:
            raise aiohttp_web.HTTPFound(f"{store}/blob")

        async with serving(hub) as url, fetch_web.session(("127.0.0.1", "127.0.0.2")) as session:
            with pytest.raises(SourceRefused, match=rf"{store}/blob: HTTP 403"):
                await fetch_web.text(session, url, {})
