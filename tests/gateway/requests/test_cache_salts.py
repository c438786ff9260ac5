"""Whose prompts may meet in a prefix cache: those of one tenant and one salt, at the gateway and at the engine."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from baton_gateway.requests.preparing import cache_salt
from baton_wire.messages.values import pack_ids
from baton_wire.rules.prefix_digests import PromptPlaces, root_digest, split_places

PROMPT = pack_ids(list(range(3 * 64)))
NAMES = st.text("ab.-", max_size=64)


def places(salt: str) -> list[bytes]:
    return split_places(PromptPlaces(PROMPT, salt).names(64))


def test_no_two_tenants_and_no_two_salts_have_a_beginning_in_common() -> None:
    clients = [(tenant, salt) for tenant in ("", "a", "b", "ab") for salt in ("", "a", "b", "ab")]
    for one, other in combinations(clients, 2):
        first, second = cache_salt(*one), cache_salt(*other)
        assert root_digest(first) != root_digest(second)
        assert not set(places(first)) & set(places(second))
    assert places(cache_salt("a", "b")) == places(cache_salt("a", "b"))
    assert len(places("")) == 3


@given(st.tuples(NAMES, NAMES), st.tuples(NAMES, NAMES))
def test_salts_are_equal_for_the_same_tenant_and_salt_only(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (cache_salt(*one) == cache_salt(*other)) is (one == other)
