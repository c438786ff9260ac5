"""A served model and the environment of the clients, shared by the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2e.clients import environment
from e2e.clients.runs import Clients

from baton_testing.processes.baton_up import Up, manifest


@pytest.fixture(scope="session")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    python = environment.interpreter()
    if python is None:
        pytest.skip("the clients are not installed: `make test-clients` installs them")
    folder = tmp_path_factory.mktemp("clients")
    with Up(folder, manifest("clients")) as up:
        yield Clients(python, up.await_ready(), folder)
