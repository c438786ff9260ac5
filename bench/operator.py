"""Proofs of the operator that take longer than tests may: `python -m bench.operator rollout|crash|fields|scale`.

Each prints a table and writes `bench/results/operator-*.json`; it exits with 1 when something that must hold did not.
"""

from __future__ import annotations

import argparse
import sys

from bench import operator_crash, operator_fields, operator_rollout, operator_scale


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    rollout = kinds.add_parser("rollout", help="generated sequences for the planner")
    rollout.add_argument("--sequences", type=int, default=10_000)
    rollout.add_argument("--first", type=int, default=0)
    crash = kinds.add_parser("crash", help="a fault at every call of every scenario")
    crash.add_argument("--budget-s", type=float, default=7200.0)
    crash.add_argument("--seed", type=int, default=0)
    fields = kinds.add_parser("fields", help="every field mutated, and random sequences of edits")
    fields.add_argument("--sequences", type=int, default=2000)
    fields.add_argument("--budget-s", type=float, default=7200.0)
    scale = kinds.add_parser("scale", help="many deployments on the API server in KUBECONFIG")
    scale.add_argument("--deployments", type=int, default=1000)
    scale.add_argument("--per-s", type=float, default=5.0)
    scale.add_argument("--namespace", default="default")
    asked = parser.parse_args()
    if asked.kind == "rollout":
        return 1 if operator_rollout.rollout(asked.first, asked.sequences) else 0
    if asked.kind == "scale":
        return 1 if operator_scale.scale(asked.deployments, asked.per_s, asked.namespace) else 0
    if asked.kind == "fields":
        return 1 if operator_fields.fields(asked.sequences, asked.budget_s) else 0
    return 1 if operator_crash.crash(asked.budget_s, asked.seed) else 0


if __name__ == "__main__":
    sys.exit(main())
