"""HTTPS with a certificate from a folder: served, renewed without a restart, refused when it is none."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import aiohttp
import pytest

from baton_gateway.certificate import CHAIN, KEY, Certificate, CertificateError
from baton_gateway.server import GatewayServer, bind
from baton_gateway.settings import parse_settings
from baton_kv_transfer.keys import write_new_key
from baton_testing.gateway_process import until

ONE = (
    """-----BEGIN CERTIFICATE-----
MIIBkDCCATWgAwIBAgIUKSe8BgSuzjozGvFxcBmnD7Z2tAowCgYIKoZIzj0EAwIw
DjEMMAoGA1UEAwwDb25lMCAXDTI2MTEyMTIzMTQzM1oYDzIxMjYxMDI4MjMxNDMz
WjAOMQwwCgYDVQQDDANvbmUwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAASw7o12
iFIArz8DaV1jaB8Hpb4Ql4WJ02U1qJ4NnCtcwuby+0sgErHbIUOSNANrpezjv9pW
3lLuJeP4gTE82BNXo28wbTAdBgNVHQ4EFgQUHKP0Z59+RU8OFy/9lup/VhzmtdYw
HwYDVR0jBBgwFoAUHKP0Z59+RU8OFy/9lup/VhzmtdYwDwYDVR0TAQH/BAUwAwEB
/zAaBgNVHREEEzARgglsb2NhbGhvc3SHBH8AAAEwCgYIKoZIzj0EAwIDSQAwRgIh
ALhMuENFLqquwrxwlI8dS9uw6zxrxZRh5Nqxid9I92LYAiEAla4LVRDZkI/c5nZ4
t6G33ws5qXWCKgOA/XgUGpGE+Qg=
-----END CERTIFICATE-----
""",
    """-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgDTIhrGTaJVErvz0o
b5R3vUktjWkUewasdw7Sp1Uudt2hRANCAASw7o12iFIArz8DaV1jaB8Hpb4Ql4WJ
02U1qJ4NnCtcwuby+0sgErHbIUOSNANrpezjv9pW3lLuJeP4gTE82BNX
-----END PRIVATE KEY-----
""",
)
TWO = (
    """-----BEGIN CERTIFICATE-----
MIIBjzCCATWgAwIBAgIUJn6lpssaSTyqPf516UTUJxDpJ1owCgYIKoZIzj0EAwIw
DjEMMAoGA1UEAwwDdHdvMCAXDTI2MTEyMTIzMTQzM1oYDzIxMjYxMDI4MjMxNDMz
WjAOMQwwCgYDVQQDDAN0d28wWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAAR0dFHH
LAxh64BeeE3m+AIrFe0YkFamIyD4wlxdH1XubG1dDRwydFndnFqHviTLaUkm2q6B
BiydGs5dvyaJBBkQo28wbTAdBgNVHQ4EFgQULxMEnO8sG0l57IVdkXg0nBQglM4w
HwYDVR0jBBgwFoAULxMEnO8sG0l57IVdkXg0nBQglM4wDwYDVR0TAQH/BAUwAwEB
/zAaBgNVHREEEzARgglsb2NhbGhvc3SHBH8AAAEwCgYIKoZIzj0EAwIDSAAwRQIh
ALXae0qfnAhjmecEuME3R/BDQy5auLharwKqTLM5gQO7AiALCoLHbZ6cYMi+v/yv
WGCYLcjJBnc5snBVSjXTUFbJ3g==
-----END CERTIFICATE-----
""",
    """-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg8m4tDPJw67kmP5rg
AXHSQ2uHNnI7usrN1buVqUdr6MuhRANCAAR0dFHHLAxh64BeeE3m+AIrFe0YkFam
IyD4wlxdH1XubG1dDRwydFndnFqHviTLaUkm2q6BBiydGs5dvyaJBBkQ
-----END PRIVATE KEY-----
""",
)
"""Self-signed for localhost, good for a hundred years."""


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
    with pytest.raises(CertificateError, match="no certificate and its key"):
        Certificate(tmp_path)


def test_a_folder_without_the_files_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match="No such file"):
        Certificate(tmp_path)
