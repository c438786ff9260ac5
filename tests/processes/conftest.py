"""Deployments that the test modules of this folder share: each module gets its own processes, started once."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from baton_testing.processes.deployment import Deployment, Shape
from baton_testing.processes.prepared import Prepared, service

CLIENT_S = 60.0


def client_of(deployment: Deployment) -> openai.OpenAI:
    """The official client, without retries of its own."""
    return openai.OpenAI(base_url=f"{deployment.base_url}/v1", api_key="unused", max_retries=0, timeout=CLIENT_S)


@pytest.fixture(scope="module")
def shape() -> Shape:
    """The shape of the module's deployment; a module overrides this fixture to change it."""
    return Shape()


@pytest.fixture(scope="session")
def prepared() -> Iterator[Prepared]:
    with service() as ready:
        yield ready


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory, shape: Shape, prepared: Prepared) -> Iterator[Deployment]:
    with Deployment(tmp_path_factory.mktemp("deployment"), shape, prepared) as running:
        yield running


@pytest.fixture(scope="module")
def client(deployment: Deployment) -> Iterator[openai.OpenAI]:
    with client_of(deployment) as connected:
        yield connected
