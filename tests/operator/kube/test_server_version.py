"""A server that is too old is told at the start, feature by feature, and worked with."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import yaml

from baton_operator import metrics
from baton_operator.kube.kube_api import Forbidden, KubeError, Unavailable
from baton_operator.kube.server_version import FEATURES, OLDEST, lacks, look, version_of, warnings
from baton_testing.virtual_time.loop import run_virtual

CHART = Path(__file__).parents[3] / "charts" / "baton" / "Chart.yaml"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("v1.33.2", (1, 33)),
        ("v1.34.1+k3s1", (1, 34)),
        ("v1.33.5-gke.1080000", (1, 33)),
        ("1.36", (1, 36)),
        ("", None),
        ("canary", None),
    ],
)
def test_versions_of_all_kinds_of_clusters_are_read(text: str, version: tuple[int, int] | None) -> None:
    assert version_of(text) == version


def test_the_oldest_version_is_the_charts_and_lacks_nothing() -> None:
    wanted = yaml.safe_load(CHART.read_text(encoding="utf-8"))["kubeVersion"]
    assert wanted == f">={OLDEST[0]}.{OLDEST[1]}.0-0"
    assert all(feature.since <= OLDEST for feature in FEATURES)
    for text in (f"v{OLDEST[0]}.{OLDEST[1]}.0", "v1.36.4", "v2.0.0", "canary", ""):
        assert (lacks(text), warnings(text)) == ((), ())


def test_an_older_one_lacks_what_came_since() -> None:
    assert lacks("v1.20.2") == FEATURES
    assert [feature.name for feature in lacks("v1.29.9")] == ["preStop.sleep", "ValidatingAdmissionPolicy"]
    assert lacks("v1.32.0") == ()
    assert warnings("v1.32.0") == ("Kubernetes v1.32.0 is older than 1.33, the oldest that Baton supports",)
    assert "CEL in definitions is missing: wrong specs are stored, and refused by the operator alone" in warnings(
        "v1.20.2"
    )


def asked(*answers: str | KubeError) -> str:
    left = list(answers)

    async def ask() -> str:
        answer = left.pop(0)
        if isinstance(answer, KubeError):
            raise answer
        return answer

    version: str = run_virtual(look(ask))
    assert left == []
    return version


def test_it_is_logged_once_after_a_server_that_was_away(caplog: pytest.LogCaptureFixture) -> None:
    assert asked(Unavailable("away"), Unavailable("away"), "v1.29.1") == "v1.29.1"
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert messages[2:] == list(warnings("v1.29.1"))


def test_a_server_that_does_not_tell_its_version_is_taken_as_it_is() -> None:
    assert asked(Forbidden("no")) == ""


def test_a_metric_has_what_is_missing_and_nothing_else() -> None:
    metrics.server_lacks(feature.name for feature in lacks("v1.29.1"))
    assert b'baton_operator_server_lacks{feature="preStop.sleep"} 1.0' in metrics.text()
    metrics.server_lacks(())
    assert b"baton_operator_server_lacks{" not in metrics.text()
