"""HTTPS with a certificate from a folder: served, renewed without a restart, refused when it is none."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import aiohttp
import pytest

from baton_gateway.http_api.certificate import CHAIN, KEY, Certificate, CertificateError
from baton_gateway.server import GatewayServer
from baton_gateway.settings import parse_settings
from baton_testing.gateway.gateway_process import until
from baton_testing.processes.certificates import ONE, TWO
from baton_wire.keys import write_new_key
from baton_wire.listening.sockets import bind


def put(folder: Path, pair: tuple[str, str]) -> None:
    (folder / CHAIN).write_text(pair[0])
    (folder / KEY).write_text(pair[1])


async def seen(port: int) -> bytes | None:
    """The certificate that a new connection is shown."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    shown: ssl.SSLObject = writer.get_extra_info("ssl_object")
    found = shown.getpeercert(binary_form=True)
    writer.close()
    await writer.wait_closed()
    return found


async def test_https_is_served_and_a_renewed_certificate_is_taken_without_a_restart(tmp_path: Path) -> None:
    keys, tls = tmp_path / "keys", tmp_path / "tls"
    keys.mkdir()
    tls.mkdir()
    write_new_key(keys, "k")
    put(tls, ONE)
    nobody = f"file:{tmp_path / 'none.json'}"
    argv = [f"--keys={keys}", f"--tls={tls}", f"--prefill-discovery={nobody}", f"--decode-discovery={nobody}"]
    server = GatewayServer(parse_settings([*argv, "--drain-s=0"]))
    listening = bind("127.0.0.1", 0)
    listening.listen()
    await server.start(listening)
    port = listening.getsockname()[1]
    try:
        trusted = ssl.create_default_context(cadata=ONE[0])
        async with aiohttp.ClientSession() as session:
            async with session.get(f"https://localhost:{port}/health/live", ssl=trusted) as answer:
                assert answer.status == 200
            with pytest.raises(aiohttp.ClientError):
                await session.get(f"http://localhost:{port}/health/live")
        (tls / KEY).write_text(TWO[1])  # half of a renewal
        await until(lambda: server.certificate_complaint != "")
        assert await seen(port) == ssl.PEM_cert_to_DER_cert(ONE[0])
        put(tls, TWO)
        await until(lambda: server.certificate_complaint == "")
        assert await seen(port) == ssl.PEM_cert_to_DER_cert(TWO[0])
    finally:
        await server.stop()


@pytest.mark.parametrize("pair", [(ONE[0], TWO[1]), ("", ONE[1]), (ONE[0], "nonsense")])
def test_files_that_are_no_certificate_and_its_key_are_refused(tmp_path: Path, pair: tuple[str, str]) -> None:
    put(tmp_path, pair)
    with pytest.raises(CertificateError, match="not a certificate and its key"):
        Certificate(tmp_path)


def test_a_folder_without_the_files_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match="No such file"):
        Certificate(tmp_path)
