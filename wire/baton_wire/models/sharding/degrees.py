"""Degrees of tensor parallelism that a model allows."""

from __future__ import annotations

from typing import Final

from baton_wire.models.decoder_spec import DecoderSpec
from baton_wire.models.errors import ModelConfigError
from baton_wire.models.sharding.shard_spec import shard_spec

MAX_RANKS: Final = 8
"""Ranks of one worker at most: the GPUs of one host."""


def allowed_degrees(config: DecoderSpec) -> tuple[int, ...]:
    """The numbers of ranks that can share the model, ascending; 1 is always among them."""
    return tuple(ranks for ranks in range(1, MAX_RANKS + 1) if _objection(config, ranks) is None)


def check_degree(config: DecoderSpec, ranks: int) -> None:
    """Raises ModelConfigError unless that many ranks can share the model: field, value, what is allowed."""
    if (objection := _objection(config, ranks)) is not None:
        allowed = ", ".join(map(str, allowed_degrees(config)))
        raise ModelConfigError(f"tensor_parallel: {ranks} {objection}; allowed: {allowed}")


def _objection(config: DecoderSpec, ranks: int) -> str | None:
    """Why that many ranks cannot share the model; None: they can."""
    if not 1 <= ranks <= MAX_RANKS:
        return "is not a number of ranks"
    try:
        shard_spec(config, 0, ranks)
    except ValueError as error:
        return f"ranks cannot share {error} of the model equally"
    return None
