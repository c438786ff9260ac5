"""Stages that share out the layers of prefill workers: an argument of the pool, which has no field of its own."""

from __future__ import annotations

from typing import Final

from baton_control.errors import UnsupportedError
from baton_control.spec.pools import PoolSpec
from baton_wire.messages.values import Role

STAGES: Final = "pipeline-parallel"
"""Name of the argument: the worker's flag."""


def stages_of(pool: PoolSpec) -> int:
    """The stages of each worker; 1 where the pool names none, or none that a worker would take."""
    values = [argument.value or "" for argument in pool.arguments if argument.name == STAGES]
    return max(1, int(values[0])) if values and values[0].isascii() and values[0].isdecimal() else 1


def refuse_stages(pool: PoolSpec, role: Role, *, flips: bool, is_on_cpu: bool) -> None:
    """Raises UnsupportedError for stages of workers that cannot have any."""
    if stages_of(pool) == 1:
        return
    if role is Role.DECODE:
        reason = "a step that decodes needs the token of the step before, so that one stage alone would compute"
    elif flips:
        reason = "workers that flip decode, too"
    elif not is_on_cpu:
        reason = "stages compute on CPUs only"
    else:
        return
    raise UnsupportedError(f"spec.{role}.arguments", f"{STAGES} is not allowed: {reason}: must be absent")
