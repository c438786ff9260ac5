"""Notes about devices that a spec may mean otherwise than Baton uses them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from baton_control.spec.api import LLMDeployment
from baton_control.worker_specs import pool_roles, pool_spec

NEVER_RUN: Final = ("amd.com/", "gpu.intel.com/", "habana.ai/", "google.com/", "aws.amazon.com/")
"""Domains of accelerators that workers were never run on."""


def device_notes(deployment: LLMDeployment) -> Iterator[str]:
    """Notes about claims that no accelerator names, and about accelerators that workers were never run on."""
    for role in pool_roles(deployment):
        pool = pool_spec(deployment, role)
        if pool.accelerator is None and pool.resource_claims:
            names = ", ".join(claim.name for claim in pool.resource_claims)
            yield (
                f"spec.{role}.resourceClaims: {names} is claimed, but workers without an accelerator compute on CPUs: "
                "accelerator.claim names the claim of a GPU"
            )
        resource = None if pool.accelerator is None else pool.accelerator.resource
        if resource is not None and resource.startswith(NEVER_RUN):
            yield (
                f"spec.{role}.accelerator.resource: workers were never run on {resource}, only on nvidia.com/gpu: "
                "they start with --device=cuda"
            )
