"""Reserved keys of labels and annotations, which no tenant may set, whatever an installation allows."""

from __future__ import annotations

from collections.abc import Mapping

from baton_control.spec.base_model import broken_rule

RESERVED_LABELS = ("baton.dev", "kubernetes.io", "k8s.io", "istio.io")
"""Domains, subdomains included, whose labels no tenant can set on Pods."""
RESERVED_ANNOTATIONS = ("baton.dev",)
"""Domains, subdomains included, whose annotations no tenant can set."""

MESH_OPT_OUTS = {"sidecar.istio.io/inject": "false", "istio.io/dataplane-mode": "none"}
"""Labels that keep a mesh away from a Pod. Each only takes something away, so that every tenant may set it, with this
very value."""


def refuse_reserved(field: str, given: Mapping[str, str], domains: tuple[str, ...]) -> None:
    """Raise the error for a key in one of the reserved domains, unless it is an opt-out from a mesh."""
    for key, value in given.items():
        if MESH_OPT_OUTS.get(key) == value:
            continue
        domain = key.partition("/")[0] if "/" in key else ""
        if any(domain == reserved or domain.endswith(f".{reserved}") for reserved in domains):
            only = f": must be {MESH_OPT_OUTS[key]}" if key in MESH_OPT_OUTS else ""
            raise broken_rule(f"{field}.{key}", f"not allowed: {domain} is reserved{only}")
