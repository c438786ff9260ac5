"""The reference page of the LLMDeployment, written from the API types: every field, what it allows, its default.

`python -m baton_operator.schema.reference FILE` writes it, `--check FILE` fails when the file is not what would be
written.
"""

from __future__ import annotations

import enum
import sys
import textwrap
import typing
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from baton_control.spec.allowed import describe, fields_of, model_of, words_of
from baton_control.spec.api import LLMDeployment
from baton_control.spec.base_model import Model
from baton_control.spec.quantities import Quantity

HEADER = """\
# LLMDeployment reference

Written from `control/baton_control/spec/` by `make format`; do not edit. A pool's fields are the same for
`prefill` and `decode` and are listed once.

| field | must be | default | what it means |
|---|---|---|---|
"""
COMING_FROM: tuple[tuple[str, str, str], ...] = (
    ("KServe", "`model.uri`, `storageUri`", "`spec.model.source`; `hf://` needs the commit"),
    ("KServe", "`model.name`", "`spec.model.servedName`"),
    ("KServe", "`replicas`, `minReplicas`, `maxReplicas`", "`spec.prefill.replicas`: `{min, max}`, by pool"),
    ("KServe", "`prefill`, `worker`, `template`", "`spec.prefill`; a Pod's settings are fields, there is no template"),
    ("KServe", "`router.route`, `router.gateway`", "`spec.gateway`"),
    ("KServe", "`parallelism.tensor`", "`spec.prefill.tensorParallel`; each pool has its own"),
    ("KServe", "`scaleTarget`, `scaleMetric`", "`spec.slo.ttft`, `spec.slo.tpot`: latencies in place of a metric"),
    ("Dynamo", "`services.Frontend`", "`spec.gateway`"),
    ("Dynamo", "`services.VllmPrefillWorker.replicas`", "`spec.prefill.replicas.min`"),
    ("Dynamo", "`services.VllmDecodeWorker.replicas`", "`spec.decode`, with the fields of `spec.prefill`"),
    ("Dynamo", "`envs`", "`spec.prefill.env`"),
    ("Dynamo", "`extraPodSpec.mainContainer.image`", "none: the installation chooses the image by digest"),
    ("Dynamo", "`resources.limits.gpu`", "`spec.prefill.accelerator.resource`; one for each worker"),
    ("Dynamo", "planner's `ttft`, `itl`", "`spec.slo.ttft.target`, `spec.slo.tpot.target`"),
    ("vLLM", "`--served-model-name`", "`spec.model.servedName`, `spec.model.aliases`"),
    ("vLLM", "`--max-model-len`", "`spec.model.maxContextTokens`"),
    ("vLLM", "`--dtype`", "`spec.model.dtype`"),
    ("vLLM", "`--gpu-memory-utilization`", "`spec.prefill.engine.kvCacheMemory`, in bytes"),
    ("vLLM", "`--max-num-seqs`", "`spec.prefill.engine.maxSequences`"),
    ("vLLM", "`--max-num-batched-tokens`", "`spec.prefill.engine.maxStepTokens`"),
    ("vLLM", "`--tool-call-parser`, `--reasoning-parser`", "`spec.model.toolFormat`, `spec.model.reasoningFormat`"),
    ("vLLM", "`--tensor-parallel-size`", "`spec.prefill.tensorParallel`; each pool has its own"),
)
"""Fields and flags of other systems: system, its name, ours."""
SAME_AS_PREFILL = "spec.decode"
MAX_CELL = 120
"""Most characters of a cell; a longer description of allowed values goes below the table."""
BELOW = "see below"


@dataclass(frozen=True, slots=True)
class Row:
    """One field of the reference."""

    path: str
    allowed: str
    default: str
    description: str

    def __str__(self) -> str:
        cells = (f"`{self.path}`", self.allowed, self.default, self.description)
        return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"


def page() -> str:
    """The whole page."""
    listed = list(rows(LLMDeployment, ""))
    table = "".join(f"{replace(row, allowed=BELOW) if _is_wide(row) else row}\n" for row in listed)
    notes = "".join(f"\n{_note(row)}\n" for row in listed if _is_wide(row))
    return HEADER + table + notes + coming_from()


def coming_from() -> str:
    """The table of what other systems call the fields."""
    rows = "".join(f"| {system} | {theirs} | {ours} |\n" for system, theirs, ours in COMING_FROM)
    return (
        "\n## Coming from KServe, Dynamo, vLLM\n\n"
        "`baton validate FILE` checks a manifest without a cluster, and says what the fields of these systems are\n"
        "called here. [from-vllm.md](from-vllm.md) has vLLM's flags and paths.\n\n"
        f"| system | there | here |\n|---|---|---|\n{rows}"
    )


def _is_wide(row: Row) -> bool:
    return len(row.allowed) > MAX_CELL


def _note(row: Row) -> str:
    """The allowed values of a field, as a sentence below the table."""
    words = f"`{row.path}` must be: {row.allowed}"
    return "\n".join(textwrap.wrap(words, MAX_CELL, break_long_words=False, break_on_hyphens=False))


def rows(model: type[Model], prefix: str, default: object = None) -> Iterator[Row]:
    """The fields of a model and of its inner models, in the order of the types; mappings of fields have no row.

    `default` is the value of the model itself when a manifest leaves it out; its fields then have defaults too.
    """
    for name, field in fields_of(model).items():
        path = f"{prefix}.{name}" if prefix else name
        if path == SAME_AS_PREFILL:
            yield Row(path, "as `spec.prefill`", "", words_of(field))
            continue
        inner = model_of(field.annotation)
        if inner is not None:
            yield from rows(inner, path, field.get_default(call_default_factory=False))
            continue
        allowed = describe(field.annotation, field.metadata)
        yield Row(path, allowed, _default(field, _value_in(default, name, model)), words_of(field))
        item = _item_model(field.annotation)
        if item is not None:
            yield from rows(item, f"{path}[]")


def _item_model(annotation: object) -> type[Model] | None:
    arguments = typing.get_args(annotation)
    return model_of(arguments[0]) if typing.get_origin(annotation) is tuple else None


def _value_in(default: object, name: str, model: type[Model]) -> object:
    """The value of a field, by its name in manifests, in an instance of the model; undefined without one."""
    if not isinstance(default, model):
        return PydanticUndefined
    return next(getattr(default, key) for key, field in model.model_fields.items() if (field.alias or key) == name)


def _default(field: FieldInfo, inherited: object) -> str:
    value: object = field.get_default(call_default_factory=False)
    value = inherited if value is PydanticUndefined else value
    if value is PydanticUndefined:
        return "required"
    if value is None or value in ((), {}):
        return "none"
    quantity = next((item for item in field.metadata if isinstance(item, Quantity)), None)
    if quantity is not None and isinstance(value, int | float):
        return f"`{quantity.show(value)}`"
    if isinstance(value, enum.Enum):
        return f"`{value.value}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def main(arguments: list[str]) -> int:
    is_check, path = arguments[:1] == ["--check"], Path(arguments[-1])
    if not is_check:
        path.write_text(page(), encoding="utf-8")
        return 0
    if path.read_text(encoding="utf-8") == page():
        return 0
    print(f"{path} is not what the API types say: run `make format`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
