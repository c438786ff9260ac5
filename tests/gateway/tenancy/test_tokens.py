"""Tokens of an identity provider: who is let in by one, and why another one is refused."""

from __future__ import annotations

import hmac
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from baton_gateway.errors import RefusedError
from baton_gateway.settings import SettingsError, parse_settings
from baton_gateway.tenancy.tenants import Tenants
from baton_gateway.tenancy.token_claims import TokenRules, find_tenant
from baton_gateway.tenancy.token_verifier import read_verifier
from baton_testing.gateway.issuer import AUDIENCE, CLAIMS, ISSUER, NOW, Issuer, b64, b64_bytes, write_token_rules
from baton_wire.tenant_table import TenantRow, TenantShard

DEEP = b'{"a":' * 1_100
"""JSON that is nested deeper than a parser goes."""
RULES = TokenRules(ISSUER, AUDIENCE, "jwks.json", claim="team")


def test_a_claim_names_the_tenant() -> None:
    assert find_tenant(CLAIMS, RULES, NOW) == "red"
    assert find_tenant(CLAIMS | {"aud": ["other", "baton"], "nbf": NOW - 1, "iat": NOW}, RULES, NOW) == "red"


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"iss": "https://id.example/"}, "another issuer"),
        ({"iss": None}, "another issuer"),
        ({"aud": "baton2"}, "another audience"),
        ({"aud": None}, "another audience"),
        ({"aud": []}, "another audience"),
        ({"aud": {"baton": 1}}, "another audience"),
        ({"exp": None}, "no time at which it expires"),
        ({"exp": "tomorrow"}, "'exp' that is no time"),
        ({"exp": True}, "'exp' that is no time"),
        ({"exp": float("inf")}, "'exp' that is no time"),
        ({"exp": 10**400}, "'exp' that is no time"),
        ({"exp": NOW - 60}, "expired"),
        ({"nbf": NOW + 61}, "not valid yet"),
        ({"iat": NOW + 61}, "not valid yet"),
        ({"team": None}, "'team'"),
        ({"team": ["red"]}, "'team'"),
        ({"team": "Red"}, "'team'"),
        ({"team": "x" * 64}, "'team'"),
        ({"team": "*shared"}, "'team'"),
    ],
)
def test_a_token_with_other_claims_is_401_with_the_reason(claims: dict[str, Any], reason: str) -> None:
    with pytest.raises(RefusedError, match=reason) as refusal:
        find_tenant(CLAIMS | claims, RULES, NOW)
    assert (refusal.value.problem.status, refusal.value.problem.code) == (401, "invalid_token")


def test_clocks_may_differ_by_the_leeway_alone() -> None:
    assert find_tenant(CLAIMS | {"exp": NOW - 59, "nbf": NOW + 59}, RULES, NOW) == "red"
    strict = TokenRules(RULES.issuer, RULES.audience, claim=RULES.claim, leeway_s=0.0)
    with pytest.raises(RefusedError, match="expired"):
        find_tenant(CLAIMS | {"exp": NOW}, strict, NOW)


def write_config(folder: Path, keys: list[dict[str, Any]], **fields: Any) -> Path:
    (folder / "jwks.json").write_text(json.dumps({"keys": keys}))
    return write_token_rules(folder, **fields)


def test_without_the_library_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jwt", None)
    with pytest.raises(ValueError, match=r"install baton-serving\[jwt\]"):
        read_verifier(write_config(tmp_path, []))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"algorithms": ["HS256"]}, "algorithms"),
        ({"algorithms": ["none"]}, "algorithms"),
        ({"algorithms": []}, "algorithms"),
        ({"leeway_s": 301}, "leeway_s"),
        ({"issuer": ""}, "issuer"),
        ({"audiences": "x"}, "audiences"),
    ],
)
def test_a_wrong_file_is_refused_by_field(tmp_path: Path, fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_verifier(write_config(tmp_path, [], **fields))


def test_tokens_need_a_table_of_tenants(tmp_path: Path) -> None:
    flags = [f"--keys={tmp_path}", "--prefill-discovery=file:x", "--decode-discovery=file:x", "--jwt=x"]
    with pytest.raises(SettingsError, match="--tenants"):
        parse_settings(flags)


# Signatures -----------------------------------------------------------------------------------------------------------


def tenants(tmp_path: Path, config: Path) -> Tenants:
    tenants = Tenants(table=tmp_path, tokens=read_verifier(config))
    tenants.apply(TenantShard(0, 1, (TenantRow("red"),)))
    return tenants


@pytest.mark.parametrize("kind", ["RS256", "ES256", "EdDSA"])
def test_a_signed_token_lets_its_tenant_in(tmp_path: Path, kind: str) -> None:
    issuer = Issuer("one", kind)
    known = tenants(tmp_path, write_config(tmp_path, [issuer.public()]))
    assert known.authenticate(f"Bearer {issuer.sign()}", NOW).name == "red"
    assert known.authenticate(f"Bearer {issuer.sign(headers={})}", NOW).name == "red", "there is one key alone"
    with pytest.raises(RefusedError, match="names no tenant"):
        known.authenticate(f"Bearer {issuer.sign(CLAIMS | {'team': 'blue'})}", NOW)


def hs256_with(secret: bytes, body: str) -> str:
    """A token that is signed with a shared secret, for which everybody's public key is taken."""
    signed = f"{b64({'alg': 'HS256', 'kid': 'one'})}.{body}"
    return f"{signed}.{b64_bytes(hmac.digest(secret, signed.encode(), 'sha256'))}"


def test_forged_tokens_are_401_with_the_reason(tmp_path: Path) -> None:
    issuer, other, curve = Issuer("one"), Issuer("one"), Issuer("two", "ES256")
    known = tenants(tmp_path, write_config(tmp_path, [issuer.public(), curve.public()]))
    good = issuer.sign()
    head, body, signature = good.split(".")
    tokens = {
        f"{b64({'alg': 'none', 'kid': 'one'})}.{body}.": "not allowed",
        f"{b64({'alg': 'HS256', 'kid': 'one'})}.{body}.{signature}": "not allowed",
        f"{b64({'alg': ['RS256'], 'kid': 'one'})}.{body}.{signature}": "not allowed|malformed",
        f"{b64({'alg': 'RS256', 'kid': 'one', 'crit': ['x']})}.{body}.{signature}": "not allowed|malformed",
        f"{b64({'alg': 'RS256', 'kid': ['one']})}.{body}.{signature}": "unknown key|malformed",
        f"{head}.{b64(CLAIMS | {'team': 'blue'})}.{signature}": "wrong signature",
        f"{head}.{body}.": "wrong signature",
        f"ey.{body}.{signature}": "malformed",
        "eyx.x.x": "malformed",
        f"ey{b64_bytes(b'[' * 5_000)}.{body}.{signature}": "malformed",
        f"{b64_bytes(DEEP)}.{body}.{signature}": "malformed",
        f"{b64({'alg': 'RS256', 'kid': 'one', 'n': 10**3_000})}.{body}.{signature}": "malformed|wrong signature",
        f"{b64({'alg': 'RS256', 'jwk': other.public()})}.{body}.{signature}": "unknown key",
        f"{b64({'alg': 'RS256', 'kid': 'one', 'jku': 'https://evil.example'})}.{body}.{signature}": "wrong signature",
        hs256_with(issuer.public_pem(), body): "not allowed",
        other.sign(): "wrong signature",
        issuer.sign(headers={"kid": "four"}): "unknown key",
        issuer.sign(headers={"kid": "two"}): "unknown key",
        issuer.sign(headers={}): "unknown key",
        curve.sign(headers={"kid": "one"}): "unknown key",
        "ey" + "a" * 9_000 + ".b.c": "longer than",
    }
    for token, reason in tokens.items():
        with pytest.raises(RefusedError, match=reason) as refusal:
            known.authenticate(f"Bearer {token}", NOW)
        assert refusal.value.problem.status == 401
    assert known.authenticate(f"Bearer {good}", NOW).name == "red"


def test_an_installation_may_allow_fewer_algorithms_and_a_key_names_its_own(tmp_path: Path) -> None:
    issuer = Issuer("one")
    for config in (
        write_config(tmp_path, [issuer.public()], algorithms=["ES256", "PS256"]),
        write_config(tmp_path, [issuer.public(alg="RS512")]),
    ):
        with pytest.raises(RefusedError, match=r"not allowed|unknown key"):
            tenants(tmp_path, config).authenticate(f"Bearer {issuer.sign()}", NOW)


@pytest.mark.parametrize("fields", [{"d": "x"}, {"use": "enc"}, {"kty": "oct", "k": "x"}, {"crv": 1, "kty": "EC"}])
def test_keys_that_are_no_public_keys_for_signatures_are_not_used(tmp_path: Path, fields: dict[str, Any]) -> None:
    issuer = Issuer("one")
    with pytest.raises(ValueError, match=r"jwks\.json"):
        read_verifier(write_config(tmp_path, [issuer.public(**fields)]))


def test_an_unknown_key_is_looked_up_once_a_second_and_a_wrong_file_changes_nothing(tmp_path: Path) -> None:
    old, new = Issuer("old"), Issuer("new")
    known = tenants(tmp_path, write_config(tmp_path, [old.public()]))
    with pytest.raises(RefusedError, match="unknown key"):
        known.authenticate(f"Bearer {new.sign()}", NOW)
    write_config(tmp_path, [old.public(), new.public()])
    with pytest.raises(RefusedError, match="unknown key"):
        known.authenticate(f"Bearer {new.sign()}", NOW + 0.5)
    assert known.authenticate(f"Bearer {new.sign()}", NOW + 1.5).name == "red"
    (tmp_path / "jwks.json").write_text("{}")
    with pytest.raises(ValueError, match=r"jwks\.json"):
        known.refresh()
    known.refresh()
    assert known.authenticate(f"Bearer {old.sign()}", NOW).name == "red", "the former keys stay valid"


def test_a_key_with_the_form_of_a_token_is_still_a_key(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("team: eyabc.def.ghi\n")
    issuer = Issuer("one")
    verifier = read_verifier(write_config(tmp_path, [issuer.public()]))
    known = Tenants(tmp_path / "keys", tmp_path / "table", tokens=verifier)
    assert known.authenticate("Bearer eyabc.def.ghi", NOW).name == "team"
    with pytest.raises(RefusedError, match="API key"):
        known.authenticate("Bearer no-token-at-all", NOW)
