"""`baton doctor`: what may keep this machine, or a cluster, from serving, and what mends it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from baton_local.doctor.cluster_checks import check_cluster
from baton_local.doctor.cluster_facts import ClusterFacts
from baton_local.doctor.finding import Finding, as_json, as_text, exit_status
from baton_local.doctor.machine_checks import check_machine
from baton_local.doctor.machine_reading import read_machine


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """The options of the command line."""

    is_cluster: bool = False
    context: str | None = None
    """A context of the kubeconfig; None: the current one."""
    namespace: str | None = None
    """The namespace of the LLMDeployments; None: that of the context."""
    operator_namespace: str = "baton-system"
    port: int = 8000
    limit_s: float = 10.0
    is_json: bool = False


def run_doctor(options: DoctorOptions) -> int:
    """Print the findings; exit status 1 when a check failed. Raises StartError."""
    if options.is_cluster:
        findings = _cluster(options)
    else:
        findings = check_machine(read_machine(options.port, options.limit_s, os.environ))
    print(json.dumps(as_json(findings), indent=2) if options.is_json else as_text(findings))
    return exit_status(findings)


def _cluster(options: DoctorOptions) -> list[Finding]:
    from baton_local.doctor.cluster_reading import ClusterRefusal, connect, own_fields, read_cluster

    try:
        call = connect(options.context, options.namespace, options.limit_s)
    except ClusterRefusal as error:
        facts = ClusterFacts(options.context or "", options.namespace or "", "", problem=str(error))
        return check_cluster(facts, {})
    return check_cluster(read_cluster(call, options.operator_namespace, options.limit_s), own_fields())
