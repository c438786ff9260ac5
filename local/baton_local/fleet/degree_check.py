"""Checks the degrees of a deployment's pools against its model, wherever the model's config.json is known."""

from __future__ import annotations

from pathlib import Path

from baton_control.errors import FieldProblem
from baton_control.spec.api import LLMDeployment
from baton_control.spec.model_source import Scheme, parse_source
from baton_control.spec.tensor_parallel import DEGREES
from baton_control.worker_specs import pool_roles, pool_spec
from baton_engine.model.servable import CONFIG, servable_config
from baton_wire.models.decoder_spec import DecoderSpec
from baton_wire.models.errors import ModelConfigError, ModelError
from baton_wire.models.sharding.degrees import allowed_degrees, check_degree


def model_degrees(config: DecoderSpec) -> tuple[int, ...]:
    """The degrees that this model allows."""
    allowed = allowed_degrees(config)
    return tuple(degree for degree in DEGREES if degree in allowed)


def degree_problems(deployment: LLMDeployment, config: DecoderSpec) -> tuple[FieldProblem, ...]:
    """The pools whose ranks cannot share this model, by field: value, why, what is allowed."""
    problems = []
    for role in pool_roles(deployment):
        try:
            check_degree(config, pool_spec(deployment, role).tensor_parallel)
        except ModelConfigError as error:
            reason = str(error).removeprefix("tensor_parallel: ").partition("; allowed:")[0]
            allowed = ", ".join(map(str, model_degrees(config)))
            problems.append(FieldProblem(f"spec.{role}.tensorParallel", f"{reason}; allowed: {allowed}"))
    return tuple(problems)


def degree_problems_of_manifest(deployment: LLMDeployment, folder: Path) -> tuple[FieldProblem, ...]:
    """The same for a manifest in `folder`. None where its model is not on this machine, or cannot be read: `baton up`
    says why."""
    if all(pool_spec(deployment, role).tensor_parallel == 1 for role in pool_roles(deployment)):
        return ()
    source = parse_source(deployment.spec.model.source)
    if source.scheme not in (Scheme.FILE, Scheme.RANDOM):
        return ()
    path = folder / str(source.path)
    try:
        config = servable_config(path if source.scheme is Scheme.RANDOM else path / CONFIG)
    except (ModelError, OSError):
        return ()
    return degree_problems(deployment, config)
