"""`baton up` of a model that is elsewhere, as one command of a user: stopped in between, resumed, served."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from baton_testing.engine import tiny_llama
from baton_testing.fake_hub import REPOSITORY, FakeHub, FakeStore, model_files, served
from baton_testing.processes.baton_up import Up
from baton_testing.processes.child_process import wait_for
from baton_testing.processes.prepared import Prepared

pytestmark = pytest.mark.processes

CUT_AFTER = 400_000
KEPT = 250_000
LARGEST = max(map(len, model_files(tiny_llama.FOLDER).values()))
COMMIT = "a" * 40


@dataclass(frozen=True)
class Elsewhere:
    server: FakeHub | FakeStore
    model: str
    pinned: str
    served_name: str
    environment: dict[str, str]


@contextmanager
def elsewhere(scheme: str) -> Iterator[Elsewhere]:
    files = model_files(tiny_llama.FOLDER)
    if scheme == "hf":
        with served(FakeHub(files)) as hub:
            model = f"hf://{REPOSITORY}"
            yield Elsewhere(hub, model, f"{model}@{COMMIT}", REPOSITORY, {"HF_ENDPOINT": hub.address})
        return
    with served(FakeStore(files)) as store:
        if scheme == "s3":
            model, environment = "s3://bucket/models/tiny", {"AWS_ENDPOINT_URL": store.address}
        else:
            host = store.address.removeprefix("http://")
            model, environment = f"oci://{host}/models/tiny@{store.digest}", {"OCI_ENDPOINT": store.address}
        yield Elsewhere(store, model, model, "tiny", environment)


def largest_in(folder: Path) -> int:
    return max((path.stat().st_size for path in folder.rglob("*") if path.is_file()), default=0)


@pytest.mark.parametrize("scheme", ["hf", "s3", "oci"])
def test_a_fetch_that_was_stopped_goes_on_and_the_model_is_served(
    scheme: str, tmp_path: Path, prepared: Prepared
) -> None:
    with elsewhere(scheme) as source:
        extra = {"XDG_CACHE_HOME": str(tmp_path / "cache"), **source.environment}
        source.server.cut_after = CUT_AFTER
        with Up(tmp_path, source.model, extra=extra, starts=prepared) as stopped:
            wait_for(lambda: largest_in(tmp_path / "cache") >= KEPT or None, "some of the weights", 120.0)
            assert stopped.child.is_running()
        assert KEPT <= largest_in(tmp_path / "cache") < LARGEST
        source.server.cut_after, before = None, source.server.sent_bytes
        with Up(tmp_path, source.model, extra=extra, starts=prepared) as up:
            up.await_ready()
            assert source.server.sent_bytes - before < sum(map(len, source.server.files.values())) - KEPT
            assert source.pinned in up.child.output()
            if scheme == "hf":
                assert f"{source.model}@main is commit {COMMIT}" in up.child.output()
            asked = up.run("ask", tiny_llama.GREETING[0], "--temperature", "0")
            assert (asked.code, asked.stdout.strip()) == (0, tiny_llama.GREETING[1])
