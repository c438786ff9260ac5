"""The LLMPool: the scale facade of one pool of an LLMDeployment, and its status.

It exists for `/scale` alone. Its name and selector stay the same over revisions, so that an autoscaler sees old and new
workers as one pool. `spec.replicas` has one writer at a time: Baton in mode SLO, an autoscaler in External,
anybody in Off. The pool runs `replicas` clamped to the LLMDeployment's bounds; the clamped value is never written back.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from baton_control.spec.base_model import Model
from baton_control.spec.pools import MAX_REPLICAS
from baton_control.spec.quantities import DeploymentName

POOL_KIND = "LLMPool"


class PoolFacadeSpec(Model):
    """The size that an autoscaler or `kubectl scale` asks of one pool."""

    deployment: DeploymentName
    """The LLMDeployment that the pool belongs to."""
    role: Literal["prefill", "decode"]
    """The pool of that LLMDeployment."""
    replicas: Annotated[int, Field(ge=0, le=MAX_REPLICAS)] = 1
    """Workers wanted, before the bounds of the LLMDeployment are applied."""
