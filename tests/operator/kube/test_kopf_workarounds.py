"""The workarounds of docs/kopf.md against the installed kopf: one that kopf no longer needs is taken out."""

from __future__ import annotations

import inspect
from importlib.metadata import version
from pathlib import Path

import pytest
from kopf._cogs.clients import api, watching
from kopf._cogs.helpers import thirdparty
from kopf._core.reactor import queueing, running

from baton_operator.kube.kopf import event_handlers

PAGE = Path(__file__).resolve().parents[3] / "docs" / "kopf.md"


@pytest.mark.parametrize(
    ("heading", "module", "text"),
    [
        ("The models", thirdparty, "from kubernetes.client import"),
        ("Streams", queueing, "async for raw_event in stream"),
        ("Streams", watching, f"async def {event_handlers._OUTERMOST}("),
        ("Tasks", running, "find a way to cancel only our spawned tasks"),
        ("Attempts", api, 'logger.error(f"Request attempt'),
    ],
)
def test_each_workaround_is_still_needed_and_explained(heading: str, module: object, text: str) -> None:
    assert text in inspect.getsource(module)  # type: ignore[arg-type]
    assert f"## {heading}\n" in PAGE.read_text(encoding="utf-8")


def test_failed_attempts_of_watches_are_logged_where_they_are_filtered() -> None:
    assert watching.logger.name == event_handlers._WATCHING


def test_kopf_does_not_close_the_streams_of_a_cancelled_watcher() -> None:
    assert "aclosing" not in inspect.getsource(queueing) + inspect.getsource(watching)


def test_the_page_names_the_installed_version() -> None:
    assert f"**kopf {version('kopf')}**" in PAGE.read_text(encoding="utf-8")
