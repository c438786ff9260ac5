"""Proofs of the operator that take longer than tests may: `make campaign RUN="operator_proofs PROOF"`.

PROOF is rollout, crash, fields, scale or isolation. Each prints a table and writes `bench/results/operator-*.json`.
It exits with 1 when something that must hold did not.
The long ones can be run in slices: `--resume FILE --budget-s 300`, again and again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from campaigns.operator_proofs import crash as operator_crash
from campaigns.operator_proofs import fields as operator_fields
from campaigns.operator_proofs import isolation as operator_isolation
from campaigns.operator_proofs import rollout as operator_rollout
from campaigns.operator_proofs import scale as operator_scale


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    rollout = kinds.add_parser("rollout", help="generated sequences for the planner")
    rollout.add_argument("--sequences", type=int, default=10_000)
    crash = kinds.add_parser("crash", help="a fault at every call of every scenario")
    crash.add_argument("--sample", type=int, default=0, help="only N of the runs, drawn from all")
    crash.add_argument("--seed", type=int, default=0, help="of the sample")
    fields = kinds.add_parser("fields", help="every field mutated, and random sequences of edits")
    fields.add_argument("--sequences", type=int, default=2000)
    for campaign in (rollout, crash, fields):
        campaign.add_argument("--budget-s", type=float, default=7200.0, help="when to stop")
        campaign.add_argument("--resume", type=Path, help="file that keeps the sums from one slice to the next")
    scale = kinds.add_parser("scale", help="many deployments on the API server in KUBECONFIG, or on one of its own")
    scale.add_argument("--deployments", type=int, default=1000)
    scale.add_argument("--per-s", type=float, default=5.0)
    scale.add_argument("--calls-per-s", type=float, default=200.0, help="limit of the operator, as its own default")
    scale.add_argument("--namespace", default="default")
    scale.add_argument("--namespaces", type=int, default=1, help="number of namespaces: NAMESPACE, NAMESPACE-1, …")
    scale.add_argument("--namespaced-rights", action="store_true", help="the operator may do nothing cluster-wide")
    isolation = kinds.add_parser("isolation", help="what trouble in some namespaces costs the others")
    isolation.add_argument("--namespaces", type=int, default=60, help="those without trouble")
    isolation.add_argument("--per-s", type=float, default=5.0)
    isolation.add_argument("--seconds", type=float, default=60.0, help="of each part: calm, trouble, calm, …")
    asked = parser.parse_args()
    if asked.kind == "rollout":
        return 1 if operator_rollout.rollout(asked.sequences, asked.budget_s, asked.resume) else 0
    if asked.kind == "scale":
        spaces = (asked.namespace, *(f"{asked.namespace}-{number}" for number in range(1, asked.namespaces)))
        return (
            1
            if operator_scale.scale(asked.deployments, asked.per_s, asked.calls_per_s, spaces, asked.namespaced_rights)
            else 0
        )
    if asked.kind == "isolation":
        return 1 if operator_isolation.isolation(asked.namespaces, asked.per_s, asked.seconds) else 0
    if asked.kind == "fields":
        return 1 if operator_fields.fields(asked.sequences, asked.budget_s, asked.resume) else 0
    return 1 if operator_crash.crash(asked.budget_s, asked.resume, asked.sample, asked.seed) else 0


if __name__ == "__main__":
    sys.exit(main())
