"""Reserved keys of labels and annotations, which no tenant may set, whatever an installation allows."""

from __future__ import annotations

from collections.abc import Iterable

from baton_control.spec.base_model import broken_rule

RESERVED_LABELS = ("baton.dev", "kubernetes.io", "k8s.io", "istio.io")
"""Domains, subdomains included, whose labels no tenant can set on Pods."""
RESERVED_ANNOTATIONS = ("baton.dev",)
"""Domains, subdomains included, whose annotations no tenant can set."""


def refuse_reserved(field: str, keys: Iterable[str], domains: tuple[str, ...]) -> None:
    """Raise the error for a key in one of the reserved domains."""
    for key in keys:
        domain = key.partition("/")[0] if "/" in key else ""
        if any(domain == reserved or domain.endswith(f".{reserved}") for reserved in domains):
            raise broken_rule(f"{field}.{key}", f"not allowed: {domain} is reserved")
