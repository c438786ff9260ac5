"""The LLMPool: the scale facade of one pool of an LLMDeployment, and its status.

It exists for `/scale` alone. Its name and selector are stable over revisions, so that an autoscaler never sees old and
new workers as two things. `spec.replicas` has one writer at a time: Baton in mode SLO, an autoscaler in External,
anybody in Off. What runs is `replicas` clamped to the LLMDeployment's bounds; the clamped value is never written back.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from baton_control.spec.base_model import Model
from baton_control.spec.pools import MAX_REPLICAS
from baton_control.spec.quantities import DeploymentName

POOL_KIND = "LLMPool"


class PoolFacadeSpec(Model):
    """What an autoscaler or `kubectl scale` may ask of one pool."""

    deployment: DeploymentName
    """The LLMDeployment that the pool belongs to."""
    role: Literal["prefill", "decode"]
    """Which pool of it."""
    replicas: Annotated[int, Field(ge=0, le=MAX_REPLICAS)] = 1
    """Workers wanted, before the bounds of the LLMDeployment are applied."""
