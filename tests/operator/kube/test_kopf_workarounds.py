"""The workarounds of docs/kopf.md against the installed kopf: one that kopf no longer needs is taken out."""

from __future__ import annotations

import inspect
import logging
from importlib.metadata import version
from logging import StreamHandler
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


def test_lines_of_kopf_take_the_form_of_the_operators_own() -> None:
    """kopf sets up logging in its own command line only, so its loggers have to write through the root's handler."""
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "kopf"]
    assert event_handlers._WATCHING in names
    loggers = [logging.getLogger(name) for name in names]
    writers = [handler for logger in loggers for handler in logger.handlers if isinstance(handler, StreamHandler)]
    assert writers == []
    assert all(logger.propagate for logger in loggers)
