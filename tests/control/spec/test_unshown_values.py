"""Keys, tokens and passwords that are given by mistake: refused by field, and repeated by no message."""

from __future__ import annotations

import pytest

from baton_control.errors import ManifestError
from baton_control.spec.manifest import parse_object
from baton_testing.kube.manifests import manifest, set_at


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("spec.gateway.apiKeys", ["sk-in-Clear-text"]),
        ("spec.gateway.apiKeys", "sk-in-Clear-text"),
        ("spec.gateway.apiKeys", {"secretName": "sk-in-Clear-text"}),
        ("spec.model.credentialsSecret", "hf_in-Clear-text"),
        ("spec.model.credentials", {"secretName": "hf_in-Clear-text"}),
        ("spec.model.source", "hf://user:Clear-text@org/model"),
        ("spec.telemetry.tracing", {"endpoint": "https://user:Clear-text@collector/"}),
    ],
    ids=str,
)
def test_what_may_be_a_key_or_a_password_is_refused_and_never_repeated(place: str, value: object) -> None:
    raw = manifest()
    set_at(raw, tuple(place.split(".")), value)
    with pytest.raises(ManifestError) as caught:
        parse_object(raw)
    assert place in str(caught.value)
    assert "Clear-text" not in str(caught.value)
