"""The resources of one container: the fields of Kubernetes, and Baton's short form of them."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field, model_validator

from baton_control.spec.base_model import Model, broken_rule
from baton_control.spec.quantities import CpuQuantity, MemoryText
from baton_control.spec.resource_quantities import BYTES, CPUS

RESOURCES: Final = {"cpu": CPUS, "memory": BYTES, "ephemeral-storage": BYTES}


class ResourceAmountsSpec(Model):
    """Amounts of a container's resources."""

    cpu: CpuQuantity | None = None
    """CPUs. Unset: none is named."""
    memory: MemoryText | None = None
    """Memory. Unset: none is named."""
    ephemeral_storage: Annotated[MemoryText | None, Field(alias="ephemeral-storage")] = None
    """Storage of the node for logs and temporary files. Unset: none is named."""

    def amounts(self) -> dict[str, str]:
        """The named amounts, by resource."""
        named = {"cpu": self.cpu, "memory": self.memory, "ephemeral-storage": self.ephemeral_storage}
        return {name: amount for name, amount in named.items() if amount is not None}


class ResourceSpec(Model):
    """Resources of one Pod, as requests and limits or in their short form."""

    cpu: CpuQuantity | None = None
    """CPU request, without a limit; on CPU pools also the compute threads of all ranks. Unset: no request, one each."""
    memory: MemoryText | None = None
    """Memory request and limit. Unset: neither."""
    requests: ResourceAmountsSpec | None = None
    """Requests, as in a container. A resource with a limit alone requests its limit."""
    limits: ResourceAmountsSpec | None = None
    """Limits, as in a container. Unset: no limits but that of `memory`."""

    @model_validator(mode="after")
    def _in_normal_form(self) -> ResourceSpec:
        """The same resources in one form: short where the short form can say it."""
        requests, limits = self.container_amounts()
        for name, amount in requests.items():
            quantity = RESOURCES[name]
            if name in limits and quantity.count(amount) > quantity.count(limits[name]):
                field = f"requests.{name}" if self.requests and name in self.requests.amounts() else name
                raise broken_rule(
                    field, f"{amount} is not allowed: must be at most limits.{name}, which is {limits[name]}"
                )
        short: dict[str, object] = {"cpu": requests.pop("cpu", None), "memory": None}
        if "memory" in limits and requests["memory"] == limits["memory"]:
            short["memory"] = limits.pop("memory")
            del requests["memory"]
        for name, amounts in (("requests", requests), ("limits", limits)):
            short[name] = ResourceAmountsSpec.model_validate(amounts) if amounts else None
        normal = self.model_copy(update=short)
        return self if normal == self else normal

    def container_amounts(self) -> tuple[dict[str, str], dict[str, str]]:
        """The requests and the limits by resource, as Kubernetes completes them. Raises for one that is named twice."""
        requests = {} if self.requests is None else self.requests.amounts()
        limits = {} if self.limits is None else self.limits.amounts()
        if self.cpu is not None:
            if "cpu" in requests:
                raise broken_rule("cpu", f"{self.cpu} is not allowed: must be absent while requests.cpu is given")
            requests["cpu"] = self.cpu
        if self.memory is not None:
            for place, amounts in (("requests", requests), ("limits", limits)):
                if "memory" in amounts:
                    message = f"{self.memory} is not allowed: must be absent while {place}.memory is given"
                    raise broken_rule("memory", message)
            requests["memory"] = limits["memory"] = self.memory
        return limits | requests, limits
