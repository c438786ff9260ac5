"""A cluster whose API server forwards ports, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

from baton_testing.kube.forwarding_cluster import FakeCluster, write_config
from baton_testing.threaded_server import serve_in_thread


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    fake, app = FakeCluster(), web.Application()
    app.router.add_route("*", "/{path:.*}", fake.answer)
    with serve_in_thread(app) as url:
        write_config(tmp_path, {"server": url})
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        yield fake
