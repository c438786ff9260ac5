"""Which workers fit each other."""

from __future__ import annotations

import pytest

from baton_testing.kv_transfer.builders import fingerprint
from baton_wire.errors import UnfitPairError
from baton_wire.fingerprint import digest, first_difference, require_fit

OTHER = {
    "wire_version": 99,
    "model_hash": "e" * 64,
    "dtype": "bfloat16",
    "kv_dtype": "fp8",
    "layers": 3,
    "kv_heads": 4,
    "head_dim": 8,
    "rope": "e" * 64,
    "tokenizer": "e" * 64,
    "windowed_block_tokens": 64,
}


def test_equal_fingerprints_fit() -> None:
    assert first_difference(fingerprint(), fingerprint()) is None
    require_fit(fingerprint(), fingerprint())
    assert digest(fingerprint()) == digest(fingerprint())


@pytest.mark.parametrize("field", OTHER)
def test_every_field_counts_and_is_named_with_both_values(field: str) -> None:
    own, peer = fingerprint(), fingerprint(**{field: OTHER[field]})
    assert first_difference(own, peer) == f"{field}: {getattr(own, field)} here, {OTHER[field]} there"
    assert digest(own) != digest(peer)
    with pytest.raises(UnfitPairError, match=f"^{field}: "):
        require_fit(own, peer)


def test_the_cases_above_are_all_fields() -> None:
    assert tuple(OTHER) == type(fingerprint()).__struct_fields__
