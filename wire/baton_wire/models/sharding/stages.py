"""The stages of a pipeline: each computes layers that follow each other, the first the embedding, the last the head."""

from __future__ import annotations

from dataclasses import dataclass

from baton_wire.models.decoder_spec import DecoderSpec
from baton_wire.models.errors import ModelConfigError
from baton_wire.models.sharding.degrees import MAX_RANKS


@dataclass(frozen=True, slots=True)
class StageShare:
    """The part of a model's layers that one stage computes."""

    stage: int
    stages: int
    layers: range

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.stages - 1


def stage_shares(layers: int, stages: int) -> tuple[StageShare, ...]:
    """Share out layers as equally as whole layers allow. Later stages have the fewer ones: the last has the head too.

    >>> [share.layers for share in stage_shares(7, 2)]
    [range(0, 4), range(4, 7)]
    """
    fewest, more = divmod(layers, stages)
    ends = [fewest * (stage + 1) + min(more, stage + 1) for stage in range(stages)]
    ranges = map(range, (0, *ends[:-1]), ends)
    return tuple(StageShare(stage, stages, own) for stage, own in enumerate(ranges))


def check_stages(config: DecoderSpec, stages: int) -> None:
    """Raises ModelConfigError unless the model has a layer for each stage: field, value, what is allowed."""
    most = min(config.num_layers, MAX_RANKS)
    if not 1 <= stages <= most:
        raise ModelConfigError(
            f"pipeline_parallel: {stages} is not supported: the model has {config.num_layers} layers, and a worker at "
            f"most {MAX_RANKS} stages; allowed: 1 to {most}"
        )
