"""Keys of labels and annotations that no tenant may set, whatever an installation allows."""

from __future__ import annotations

from collections.abc import Iterable

from baton_control.spec.base_model import broken_rule

RESERVED_LABELS = ("baton.dev", "kubernetes.io", "k8s.io", "istio.io")
"""Domains whose labels a tenant cannot set on Pods, nor those of their subdomains, whatever an installation allows."""
RESERVED_ANNOTATIONS = ("baton.dev",)
"""The same for annotations. Of all others each installation says which it allows."""


def refuse_reserved(field: str, keys: Iterable[str], domains: tuple[str, ...]) -> None:
    for key in keys:
        domain = key.partition("/")[0] if "/" in key else ""
        if any(domain == reserved or domain.endswith(f".{reserved}") for reserved in domains):
            raise broken_rule(f"{field}.{key}", f"not allowed: {domain} is reserved")
