"""Names stay DNS labels and hashes depend on content alone."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from baton_control.hashes import HASH_LENGTH, content_hash
from baton_control.names import gateway_name, pool_name, worker_name
from baton_wire.messages.values import Role

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def test_every_name_of_the_longest_deployment_is_a_dns_label() -> None:
    longest = "c" * 36
    names = [pool_name(longest, role) for role in Role] + [gateway_name(longest)]
    names += [worker_name(longest, role, "0" * HASH_LENGTH, 1023) for role in (Role.PREFILL, Role.DECODE)]
    assert all(LABEL.fullmatch(name) and len(name) <= 63 for name in names), names


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), JSON))
def test_a_hash_does_not_depend_on_the_order_of_keys(value: dict[str, object]) -> None:
    assert content_hash(value) == content_hash(dict(reversed(value.items())))


def test_a_hash_is_the_same_on_every_machine() -> None:
    assert content_hash({"b": (1, None), "a": "ü"}) == "9d57496cc0"
