"""A served model and the environment of the clients, shared by the tests of this folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.clients.environment import CLIENTS
from e2e.clients.runs import Clients, installed

from baton_testing.engine import tiny_llama
from baton_testing.engine.scripted_model import MAX_TOKENS, write_scripted_model
from baton_testing.gateway.made_tokenizers import TOOL_TEMPLATE
from baton_testing.processes.baton_up import Up, manifest


@pytest.fixture(scope="session")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    python = installed(CLIENTS)
    folder = tmp_path_factory.mktemp("clients")
    with Up(folder, manifest("clients")) as up:
        yield Clients(python, up.await_ready(), folder)


@pytest.fixture(scope="session")
def with_tool_template(clients: Clients) -> Iterator[Clients]:
    """The same model with a template that has a place for tools; its weights were never trained on any."""
    folder = clients.folder / "tools"
    model = tiny_llama.with_template(folder / "model", TOOL_TEMPLATE)
    served = {"source": f"file://{model}", "servedName": "tiny", "maxContextTokens": 2048}
    with Up(folder, manifest("tools", model=served)) as up:
        yield Clients(clients.python, up.await_ready(), folder)


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    """For agents, which name their environment: a model that follows a script, with calls in Hermes' format."""
    folder = tmp_path_factory.mktemp("agents")
    model = write_scripted_model(folder / "model", template_marks="<tool_call>")
    served = {"source": f"file://{model}", "servedName": "scripted", "maxContextTokens": MAX_TOKENS}
    pool = {"replicas": {"min": 1, "max": 1}, "engine": {"kvCacheMemory": "96Mi"}}
    with Up(folder, manifest("agents", model=served, prefill=pool, decode=pool)) as up:
        yield Clients(Path(sys.executable), up.await_ready(), folder)
