"""The GPUs of the workers of this machine: as many as a worker has ranks, and those with the fewest workers. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from baton_control.errors import UnsupportedError
from baton_control.spec.api import LLMDeployment
from baton_control.spec.tensor_parallel import DEGREES
from baton_control.worker_specs import Device, pool_roles, pool_spec
from baton_wire.messages.values import Role


def check_ranks(deployment: LLMDeployment, chosen: Mapping[Role, Device], gpus: Sequence[str]) -> None:
    """Check that each rank of a worker can have a GPU of its own. Raises UnsupportedError by field."""
    for role in pool_roles(deployment):
        degree = pool_spec(deployment, role).tensor_parallel
        if chosen[role] is Device.CUDA and degree > max(1, len(gpus)):
            has = f"{len(gpus)} GPUs ({', '.join(gpus)})" if len(gpus) > 1 else "one GPU"
            allowed = ", ".join(str(fewer) for fewer in DEGREES if fewer <= max(1, len(gpus)))
            message = f"{degree} is not allowed: each rank takes a GPU, and this machine has {has}; allowed: {allowed}"
            raise UnsupportedError(f"spec.{role}.tensorParallel", message)


def least_taken(gpus: Sequence[str], workers: Mapping[str, int], ranks: int) -> tuple[str, ...]:
    """The GPUs for a worker of that many ranks: those with the fewest workers, the first of equals, in the order of
    `gpus`. More workers than GPUs share them; the ranks of one worker never do."""
    order = {gpu: place for place, gpu in enumerate(gpus)}
    fewest = sorted(order, key=lambda gpu: (workers.get(gpu, 0), order[gpu]))[:ranks]
    return tuple(sorted(fewest, key=order.__getitem__))


class SlotGpus:
    """The GPUs of each slot. A slot keeps them when its worker is started again."""

    def __init__(self, gpus: Sequence[str]) -> None:
        """`gpus`: as CUDA_VISIBLE_DEVICES names them."""
        self._gpus = tuple(gpus)
        self._by_slot: dict[str, tuple[str, ...]] = {}

    def environment(self, slot: str, ranks: int) -> dict[str, str]:
        """The variable that gives a worker its GPUs."""
        if not self._gpus:
            return {}
        if slot not in self._by_slot:
            workers = Counter(gpu for taken in self._by_slot.values() for gpu in taken)
            self._by_slot[slot] = least_taken(self._gpus, workers, ranks)
        return {"CUDA_VISIBLE_DEVICES": ",".join(self._by_slot[slot])}

    def forget(self, slot: str) -> None:
        """Free the GPUs of a slot that is gone."""
        self._by_slot.pop(slot, None)
