"""A viewer without a key has to sit at this machine, as far as its connection and headers say."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict

from baton_gateway.page.viewer import FORWARDING_HEADERS, sits_here

HERE = {"Host": "127.0.0.1:8000"}


@pytest.mark.parametrize(
    ("peer", "headers"),
    [
        ("127.0.0.1", {"Host": "127.0.0.1:8000"}),
        ("127.0.0.1", {"Host": "localhost:8000"}),
        ("127.0.0.1", {"Host": "LOCALHOST"}),
        ("::1", {"Host": "[::1]:8000"}),
        ("::1", {"Host": "[::1]"}),
        ("::ffff:127.0.0.1", HERE),
        ("127.0.0.1", HERE | {"Sec-Fetch-Site": "same-origin", "Origin": "http://127.0.0.1:8000"}),
        ("127.0.0.1", HERE | {"Sec-Fetch-Site": "none"}),
    ],
)
def test_a_program_on_this_machine_is_known(peer: str, headers: dict[str, str]) -> None:
    assert sits_here(peer, CIMultiDict(headers))


@pytest.mark.parametrize(
    ("peer", "headers"),
    [
        (None, HERE),
        ("", HERE),
        ("10.0.0.7", HERE),
        ("::ffff:10.0.0.7", HERE),
        ("fe80::1%eth0", HERE),
        ("127.0.0.1", {}),
        ("127.0.0.1", {"Host": "rebound.example:8000"}),
        ("127.0.0.1", {"Host": "127.0.0.1.evil.example"}),
        ("127.0.0.1", {"Host": "localhost.evil.example:80"}),
        ("127.0.0.1", {"Host": "127.0.0.1:8000@evil.example"}),
        ("127.0.0.1", {"Host": "10.0.0.7:8000"}),
        ("127.0.0.1", {"Host": "0.0.0.0:8000"}),
        ("127.0.0.1", {"Host": "[::1]:x"}),
        ("127.0.0.1", HERE | {"Sec-Fetch-Site": "cross-site"}),
        ("127.0.0.1", HERE | {"Sec-Fetch-Site": "same-site"}),
        ("127.0.0.1", HERE | {"Origin": "https://evil.example"}),
        ("127.0.0.1", HERE | {"Origin": "http://127.0.0.1:9000"}),
        ("127.0.0.1", HERE | {"Origin": "null"}),
        *(("127.0.0.1", HERE | {name.lower(): "x"}) for name in FORWARDING_HEADERS),
    ],
)
def test_others_are_strangers(peer: str | None, headers: dict[str, str]) -> None:
    assert not sits_here(peer, CIMultiDict(headers))
