"""Each alert fires on what it is for, its neighbours stay silent, and its page says what to do."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from baton_operator.objects.alerts import alert_rules
from baton_testing.kube.charts import PINNED, rendered
from baton_testing.kube.manifests import deployment
from baton_testing.monitoring.promtool import run_promtool
from baton_testing.monitoring.series import families, problems, recorded

Json = dict[str, Any]
Values = Mapping[str, str]
ROOT = Path(__file__).parents[3]
RUNBOOKS = ROOT / "docs" / "runbooks"
MINUTES = 90
STILL, ONE = f"0x{MINUTES}", f"1x{MINUTES}"
ALTERED = "baton_altered_frames_total{"
OPERATOR_UP = 'up{job="baton-system/baton-operator",instance="operator:8000"}'
POD_UP = 'up{job="default/chat-gateway",namespace="default",deployment="chat",pod="chat-gateway-0",instance="g"}'
PLACE = 'namespace="default",deployment="chat"'


def growing(per_minute: float) -> str:
    return f"0+{per_minute:g}x{MINUTES}"


def constant(value: float) -> str:
    return f"{value:g}x{MINUTES}"


HEALTHY: Values = {
    r"baton_gateway_requests_total\{.*finished": growing(600),
    r"baton_gateway_ttft_seconds_(count|bucket\{.*le=\"(0\.3|0\.5|\d+\.0|\+Inf)\")": growing(600),
    r"baton_gateway_tpot_seconds_(count|bucket\{.*le=\"(0\.03|0\.04|0\.05|0\.075|0\.[125]|\d+\.0|\+Inf)\")": growing(
        600
    ),
    r"baton_gateway_loop_lag_seconds_(count|bucket)": growing(3000),
    r"baton_handover_seconds_(count|bucket\{.*le=\"(0\.12|0\.25|0\.5|\d+\.0|\+Inf)\")": growing(600),
    r"baton_operator_passes_total\{.*Done": growing(6),
    r"baton_operator_is_active": ONE,
    r"baton_pool_workers": constant(2),
    r"baton_pool_max_workers": constant(3),
    r"baton_deployment_condition\{.*status=\"True\"": ONE,
    r"baton_deployment_reason": ONE,
    r"baton_build_info": ONE,
    r"process_open_fds": constant(100),
    r"process_max_fds": constant(1000),
}
"""Values of series, by expressions that match them: the first that matches counts. Others stay at 0."""
NOT_READY: Values = {
    r"baton_deployment_condition\{.*status=\"True\"": STILL,
    r"baton_deployment_condition\{.*status=\"False\"": ONE,
}
TRIALS: Mapping[str, tuple[Values, Values]] = {
    "": ({}, {}),
    "BatonOperatorAbsent": ({}, {OPERATOR_UP: STILL}),
    "BatonOperatorInactive": ({r"baton_operator_is_active": STILL}, {}),
    "BatonNamespaceUnreadable": ({}, {'baton_operator_namespace_unreadable{namespace="default"}': ONE}),
    "BatonNamespaceClaimedElsewhere": (
        {},
        {'baton_operator_namespace_claimed_elsewhere{namespace="default",holder="b"}': ONE},
    ),
    "BatonServerTooOld": ({}, {'baton_operator_server_lacks{feature="x"}': ONE}),
    "BatonPassesFail": ({}, {'baton_operator_passes_total{outcome="Failed"}': growing(60)}),
    "BatonDeploymentNotReady": (NOT_READY, {}),
    "BatonDeploymentStalled": ({}, {f'baton_deployment_condition{{{PLACE},type="Stalled",status="True"}}': ONE}),
    "BatonModelFetchFails": ({}, {f'baton_deployment_reason{{{PLACE},reason="ModelFetchFailed"}}': ONE}),
    "BatonPoolAtMax": ({r"baton_pool_max_workers\{.*decode": constant(2)}, {}),
    "BatonWorkersMissing": ({r"baton_pool_workers\{.*decode.*routable": ONE}, {}),
    "BatonDemandUnknown": ({r"baton_sizing_holds": ONE}, {}),
    "BatonRequestsRefused": ({r"baton_gateway_requests_total\{.*refused": growing(60)}, {}),
    "BatonRetriesHigh": ({r"baton_gateway_retries_total\{.*peer_lost": growing(60)}, {}),
    "BatonFramesAltered": ({r"baton_altered_frames_total\{.*pair.*prefill": f"0x{MINUTES - 15} 3x15"}, {}),
    "BatonTokenConflicts": ({r"baton_gateway_token_conflicts_total": f"0x{MINUTES - 15} 1x15"}, {}),
    "BatonGatewayLags": ({r"baton_gateway_loop_lag_seconds_bucket\{.*le=\"(0\.0\d+|0\.1)\"": growing(2000)}, {}),
    "BatonLedgerIncomplete": ({r"baton_gateway_ledger_failing": constant(1)}, {}),
    "BatonPreemptionsHigh": ({r"baton_preemptions_total\{.*decode": growing(30)}, {}),
    "BatonOpenFilesHigh": ({r"process_open_fds\{.*gateway": constant(900)}, {}),
    "BatonVersionsMixed": ({}, {f'baton_build_info{{{PLACE},pod="old",version="0.0.1",wire="10"}}': ONE}),
    "BatonPodsUnread": ({}, {POD_UP: STILL}),
    "BatonTtftMissed": ({r"baton_gateway_ttft_seconds_bucket\{.*le=\"(0\.3|0\.5)\"": growing(300)}, {}),
    "BatonTpotMissed": ({r"baton_gateway_tpot_seconds_bucket\{.*le=\"0\.0": growing(300)}, {}),
    "BatonRequestsFail": ({r"baton_gateway_requests_total\{.*failed": growing(12)}, {}),
    "BatonHandoverSlow": ({r"baton_handover_seconds_bucket\{.*le=\"(0\.12|0\.25)\".*prefill": growing(300)}, {}),
}
"""For each alert the healthy series that become different, and further series."""


@functools.cache
def groups() -> list[Json]:
    """The rules of the chart and of one deployment."""
    manifests = rendered(PINNED | {"monitoring.prometheusRule": "true"})
    (of_chart,) = (manifest for manifest in manifests if manifest["kind"] == "PrometheusRule")
    return [*of_chart["spec"]["groups"], {"name": "baton-chat", "rules": alert_rules(deployment())}]


def rules() -> list[Json]:
    return [rule for group in groups() for rule in group["rules"]]


def values_of(series: str, changes: Values) -> str:
    for pattern, values in (*changes.items(), *HEALTHY.items()):
        if re.match(pattern, series):
            return values
    return STILL


@functools.cache
def names_of_series() -> tuple[str, ...]:
    """The series that some rule reads."""
    read = " ".join(rule["expr"] for rule in rules()).replace("baton_(gateway_)?altered", "baton_altered")
    return tuple(str(series) for series in recorded() if series.name in read)


def input_series(changes: Values, more: Values) -> list[Json]:
    found = {series: values_of(series, changes) for series in names_of_series()}
    return [{"series": name, "values": text} for name, text in {**found, OPERATOR_UP: ONE, POD_UP: ONE, **more}.items()]


@pytest.mark.parametrize("alert", TRIALS)
def test_an_alert_fires_alone_on_what_it_is_for(alert: str, tmp_path: Path) -> None:
    changes, more = TRIALS[alert]
    samples = [{"labels": f'{{alertname="{alert}"}}', "value": 1}] if alert else []
    firing = 'group by (alertname) (ALERTS{alertstate="firing"})'
    case = {
        "interval": "1m",
        "input_series": input_series(changes, more),
        "promql_expr_test": [{"expr": firing, "eval_time": f"{MINUTES - 5}m", "exp_samples": samples}],
    }
    assert run_promtool(tmp_path, [case], groups()) == ""


def test_every_alert_is_tried() -> None:
    assert {rule["alert"] for rule in rules()} == TRIALS.keys() - {""}


def test_alerts_are_about_series_and_labels_that_processes_export() -> None:
    names = families()
    for rule in rules():
        if "up{" not in rule["expr"]:  # Prometheus' own series
            expression = rule["expr"].replace('{__name__=~"baton_(gateway_)?altered_frames_total",', ALTERED)
            assert problems(expression, names) == [], expression


def test_each_alert_has_a_page_with_symptom_first_command_causes_and_mend() -> None:
    assert {path.stem for path in RUNBOOKS.glob("Baton*.md")} == {rule["alert"] for rule in rules()}
    for rule in rules():
        page = ROOT / rule["annotations"]["runbook_url"]
        text = page.read_text(encoding="utf-8")
        assert text.startswith(f"# {rule['alert']}\n")
        assert [heading for heading in re.findall(r"^## (.+)$", text, re.MULTILINE)] == [
            "First",
            "Causes, likeliest first",
        ]
        first = text.split("## First")[1].split("## Causes")[0]
        assert re.search(r"^(baton (status|top|explain|doctor)|kubectl)\b", first, re.MULTILINE), page
        assert rule["annotations"]["summary"]
