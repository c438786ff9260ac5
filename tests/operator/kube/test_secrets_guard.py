"""All namespaces are watched only where an admission policy can keep the operator from others' Secrets."""

from __future__ import annotations

from typing import Any

import pytest

from baton_operator.kube.kube_api import Unavailable
from baton_operator.kube.secrets_guard import GROUP, POLICIES, VERSION, SecretsUnguarded, check_secrets_guarded
from baton_testing.virtual_time.loop import run_virtual


class Server:
    """Says what it serves, after so many failures."""

    def __init__(self, *served: str, failures: int = 0) -> None:
        self.plurals, self.failures, self.asked = frozenset(served), failures, 0

    async def served(self, group: str, version: str) -> frozenset[str]:
        assert (group, version) == (GROUP, VERSION)
        self.asked += 1
        if self.asked <= self.failures:
            raise Unavailable("away")
        return self.plurals


def check(server: Any, namespaces: tuple[str, ...] | None) -> None:
    run_virtual(check_secrets_guarded(server, namespaces))


def test_a_cluster_without_such_policies_is_refused() -> None:
    with pytest.raises(SecretsUnguarded, match="--all-namespaces is refused: this API server has no validating"):
        check(Server("validatingwebhookconfigurations"), None)


def test_one_with_them_is_taken_also_when_it_answers_late() -> None:
    server = Server(POLICIES, failures=3)
    check(server, None)
    assert server.asked == 4


def test_named_namespaces_are_the_installers_choice() -> None:
    server = Server()
    check(server, ("team-a",))
    assert server.asked == 0
