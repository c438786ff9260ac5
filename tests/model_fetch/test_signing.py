"""Signature Version 4 against the examples that Amazon publishes."""

from __future__ import annotations

import pytest

from baton_model_fetch.sigv4 import AwsKey, signed_headers

KEY = AwsKey("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
HOST = "https://examplebucket.s3.amazonaws.com"


@pytest.mark.parametrize(
    ("url", "headers", "signature"),
    [
        (
            f"{HOST}/test.txt",
            {"Range": "bytes=0-9"},
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
        (f"{HOST}/?lifecycle", {}, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        (f"{HOST}/?max-keys=2&prefix=J", {}, "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ],
)
def test_signatures_are_those_of_the_reference(url: str, headers: dict[str, str], signature: str) -> None:
    signed = signed_headers(url, KEY, "us-east-1", "20130524T000000Z", headers)
    assert signed["Authorization"].endswith(f"Signature={signature}")
    assert headers.items() <= signed.items()


def test_a_session_token_is_signed_too() -> None:
    signed = signed_headers(f"{HOST}/", AwsKey("a", "b", "token"), "eu-west-1", "20261121T000000Z")
    assert signed["x-amz-security-token"] == "token"
    assert "x-amz-security-token" in signed["Authorization"]
