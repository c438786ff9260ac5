"""The alerts of one deployment, on the targets of its spec: latencies, failing requests, slow hand-overs.

Alerts that depend on no spec are the chart's. Metrics: docs/metrics.md. Each alert has a page in docs/runbooks.
"""

from __future__ import annotations

from baton_control.names import gateway_name
from baton_control.spec.api import LLMDeployment
from baton_operator.kube.object_fields import Manifest
from baton_operator.objects.cluster import Owner
from baton_operator.objects.metadata import object_head

MONITOR_API = "monitoring.coreos.com/v1"
MISSED_FOR, FAILED_SHARE = "10m", 0.01
HANDOVER_SHARE, MOST_HANDOVER_S = 0.5, 4.0
"""The part of the TTFT target that hand-overs may take, and its limit: the last bound of the histogram is 5 s, and no
quantile is above it."""


def alerts_object(deployment: LLMDeployment, owner: Owner) -> Manifest:
    """The PrometheusRule of a deployment."""
    metadata = deployment.metadata
    spec: Manifest = {"groups": [{"name": f"baton-{metadata.name}", "rules": alert_rules(deployment)}]}
    return object_head(MONITOR_API, "PrometheusRule", metadata.name, deployment, owner) | {"spec": spec}


def alert_rules(deployment: LLMDeployment) -> list[Manifest]:
    """The rules of a deployment."""
    slo, metadata = deployment.spec.slo, deployment.metadata
    gateways = f'{{namespace="{metadata.namespace}",pod=~"{gateway_name(metadata.name)}-.+"}}'
    rules: list[Manifest] = []
    targets = {"ttft": slo.ttft, **({"tpot": slo.tpot} if deployment.spec.model.generates else {})}
    for name, target in targets.items():
        rate = f"sum by (le) (rate(baton_gateway_{name}_seconds_bucket{gateways}[5m]))"
        rules.append(
            _rule(
                f"Baton{name.capitalize()}Missed",
                f"histogram_quantile({target.percentile / 100:g}, {rate}) > {target.target:g}",
                f"{metadata.name}: p{target.percentile:g} of {name.upper()} is over {target.target:g} s",
            )
        )
    failed = f'sum(rate(baton_gateway_requests_total{gateways[:-1]},outcome="failed"}}[5m]))'
    total = f"sum(rate(baton_gateway_requests_total{gateways}[5m]))"
    rules.append(
        _rule(
            "BatonRequestsFail",
            f"{failed} / {total} > {FAILED_SHARE:g}",
            f"{metadata.name}: more than {FAILED_SHARE:.0%} of the requests fail",
            "critical",
        )
    )
    if not deployment.spec.model.generates:
        return rules
    prefill = f'namespace="{metadata.namespace}",deployment="{metadata.name}",role="prefill"'
    rate = f"sum by (le) (rate(baton_handover_seconds_bucket{{{prefill}}}[5m]))"
    most_s = min(HANDOVER_SHARE * slo.ttft.target, MOST_HANDOVER_S)
    rules.append(
        _rule(
            "BatonHandoverSlow",
            f"histogram_quantile(0.95, {rate}) > {most_s:g}",
            f"{metadata.name}: p95 of hand-overs is over {most_s:g} s",
        )
    )
    return rules


def _rule(name: str, expression: str, summary: str, severity: str = "warning") -> Manifest:
    return {
        "alert": name,
        "expr": expression,
        "for": MISSED_FOR,
        "labels": {"severity": severity},
        "annotations": {"summary": summary, "runbook_url": f"docs/runbooks/{name}.md"},
    }
