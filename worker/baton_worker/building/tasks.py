"""The tasks that a worker serves, by its model and the tasks that it was given."""

from __future__ import annotations

from baton_wire.messages.encoding import EncodingLimits
from baton_wire.models.decoder_spec import DecoderSpec
from baton_worker.config import Task
from baton_worker.errors import ConfigError


def encoding_limits(config: DecoderSpec, tasks: tuple[Task, ...]) -> EncodingLimits:
    """The worker's encodings. `tasks`: those that it was given; without any the model decides. Raises ConfigError."""
    generates = config.generates if not tasks else Task.GENERATE in tasks
    if generates and not config.generates:
        allowed = "rerank" if config.labels else "embed"
        raise ConfigError(f"argument --tasks: generate, but the model has no head for tokens; allowed: {allowed}")
    if Task.EMBED in tasks and config.labels:
        raise ConfigError("argument --tasks: embed, but the model classifies; allowed: rerank")
    if Task.RERANK in tasks and not config.labels and not config.generates:
        raise ConfigError(
            "argument --tasks: rerank, but the model has neither labels nor a head for tokens; allowed: embed"
        )
    return EncodingLimits(
        width=config.hidden_size,
        labels=config.labels,
        is_probability=config.label_activation,
        embeds=not config.labels and (not tasks or Task.EMBED in tasks or generates),
        generates=generates,
        reranks=Task.RERANK in tasks and not config.labels,
    )
