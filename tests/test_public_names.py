"""Names that users, their alerts, their scripts and other releases of Baton rely on: none goes or changes unnoticed.

They are collected from the running code, or from its syntax where no object has them. `public_names.txt` keeps them,
one a line, and shows every change in a diff. After adding a name on purpose, write the listing anew and commit it:

    BATON_WRITE_NAMES=1 pytest tests/test_public_names.py

Under "words" stands every string constant of one word, after its package: JSON keys (marked `key:`), headers, names of
files, paths and values of labels. Words that only Python uses are among them, and may go.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import enum
import functools
import inspect
import io
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

import msgspec.inspect as mi
import pytest
import yaml
from prometheus_client import CollectorRegistry

from baton_control import names
from baton_control.hashes import content_hash
from baton_control.sizing.inputs.memory import _Saved
from baton_control.spec.manifest import read_manifest
from baton_gateway import errors, settings
from baton_gateway.apis.messages_answer import message_error_body
from baton_gateway.apis.responses_answer import response_error_body
from baton_gateway.errors import Problem, RefusedError
from baton_gateway.openai_api.response_encoding import error_body
from baton_gateway.reporting.metrics import STATUSES
from baton_gateway.reporting.state_page import ProcessReport, WorkerReport, state_body
from baton_gateway.tenancy.key_files import TenantFile
from baton_local.commands import status, top
from baton_local.commands.plan import run_plan
from baton_local.doctor import finding
from baton_local.fleet.observation import GatewayState, Link, Observation, ObservedTenant, ObservedWorker, Transfer
from baton_local.fleet.record import ProcessRecord, RunRecord, TargetRecord
from baton_local.fleet.run_dir import RunDir
from baton_local.load_test.load_record import LoadRecord
from baton_local.options import command_line, parse_options
from baton_local.quality.comparison import Quality
from baton_model_fetch import __main__ as model_fetch
from baton_operator import metrics as operator_metrics
from baton_operator import settings as operator_settings
from baton_operator.objects.cluster import Owner, Platform
from baton_operator.objects.desired import pool_facade, standing_objects, worker_deployment
from baton_operator.objects.pod_policy import PodPolicy
from baton_operator.objects.pods import worker_template
from baton_operator.passes.problems import WORST
from baton_operator.schema.crd import definitions
from baton_operator.schema.status import ConditionType, PoolConditionType
from baton_testing.names.command_lines import commands, options, parser_of
from baton_testing.names.shapes import fields, json_paths, schema_paths
from baton_testing.names.source import (
    CAMEL_CASE,
    CAPITALS,
    ON_OBJECTS,
    codes_where_raised,
    keys_in,
    matching,
    returned_numbers,
    syntax,
    words,
)
from baton_wire import handshake
from baton_wire.announcement import Announcement
from baton_wire.messages import gateway_link, measures, operator_link, pair_link, values
from baton_wire.messages.values import POOL_ROLES, WIRE_VERSION, Role
from baton_wire.models.parsing import parse_spec
from baton_wire.rules import gateway_rounds
from baton_wire.rules.step_times import PacedTimes
from baton_wire.sketch import Sketch
from baton_worker import config as worker_config
from baton_worker.reporting.views import StateView

ROOT = Path(__file__).resolve().parents[1]
LISTING = Path(__file__).with_name("public_names.txt")
CHART = ROOT / "charts" / "baton"
LINKS = {
    "worker to gateway": gateway_link.ToGateway,
    "gateway to worker": gateway_link.ToWorker,
    "prefill and decode worker": pair_link.PairMessage,
    "gateway to operator": operator_link.ToOperator,
    "operator to gateway": operator_link.ToGateway,
}
DOCUMENTS: Mapping[str, Any] = {
    "worker /state": StateView,
    "run.json": RunRecord,
    "paced.json": PacedTimes,
    "announcement": Announcement,
    "tenants' file": TenantFile,
    "--pod-policy": PodPolicy,
    "status.sizingMemory": _Saved,
    "bench --json": LoadRecord,
    "quality --json": Quality,
}
WRITTEN_BY_HAND = {
    "access log": "gateway/baton_gateway/http_api/access_log.py",
    "batch": "gateway/baton_gateway/batches/lines.py",
    "simulate --json": "local/baton_local/commands/simul*.py",
}
"""JSON made of dict literals."""
ENDS = (
    "*/baton_*/__main__.py",
    "worker/baton_worker/serving/process.py",
    "worker/baton_worker/compile_ahead.py",
    "local/baton_local/commands/*.py",
    "local/baton_local/batch/command.py",
    "local/baton_local/fleet/orphan_guard.py",
    "local/baton_local/quality/measuring.py",
)
"""Files whose functions return exit codes."""


def called(module: ModuleType, returned: tuple[type, ...], examples: Mapping[Any, Any]) -> Iterator[Any]:
    """The results of the functions of a module that are declared to return one of these types."""
    for function in vars(module).values():
        if not inspect.isfunction(function) or function.__module__ != module.__name__ or function.__name__[0] == "_":
            continue
        hints = get_type_hints(function)
        parameters = inspect.signature(function).parameters
        if hints.pop("return") in returned:
            required = (name for name, parameter in parameters.items() if parameter.default is inspect.Parameter.empty)
            yield function(**{name: examples.get(hints[name], ("x",)) for name in required})


def problems() -> Iterator[str]:
    examples: dict[Any, Any] = {str: "x", int: 1, float: 1.0, str | None: None, int | None: None}
    for made in called(errors, (Problem, RefusedError), examples):
        problem = made.problem if isinstance(made, RefusedError) else made
        yield f"{problem.status} {problem.type} {problem.code}"


def error_dialects() -> Iterator[str]:
    for dialect, body in (("chat", error_body), ("messages", message_error_body), ("responses", response_error_body)):
        for number in (int(text) for text in STATUSES if text.isdigit()):
            document = json.loads(body(Problem(number, "as chosen", "x", "x", "x"), "req-1"))
            if document["error"]["type"] != "as chosen":
                yield f"{dialect} {number} {document['error']['type']}"
            yield from json_paths(document, dialect)


def sent_values() -> Iterator[str]:
    yield f"wire version {WIRE_VERSION}"
    for module in (values, measures, handshake, gateway_rounds):
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, enum.Enum) and kind.__module__ == module.__name__:
                yield from (m.value if isinstance(m, str) else f"{m.name.lower()} = {m.value}" for m in kind)


def messages() -> Iterator[str]:
    for link, union in LINKS.items():
        for kind in map(mi.type_info, get_args(union)):
            assert isinstance(kind, mi.StructType)
            yield f"{link} {kind.tag}"
            yield from fields(kind, f"{link} {kind.tag}")


def custom_resources() -> Iterator[str]:
    for definition in definitions().values():
        spec: Any = definition["spec"]
        version, kind = spec["versions"][0], spec["names"]["kind"]
        yield from (f"{kind} {name} {spec['names'][name]}" for name in ("plural", "shortNames", "categories"))
        yield from (f"{kind} column {column['name']}" for column in version["additionalPrinterColumns"])
        yield f"{kind} {spec['group']}/{version['name']}"
        yield from schema_paths(version["schema"]["openAPIV3Schema"], kind)


def api() -> Iterator[str]:
    document = json.loads((ROOT / "gateway/baton_gateway/http_api/openapi.json").read_bytes())
    for path, operations in document["paths"].items():
        yield from (f"{method} {path}" for method in operations)
        yield from (f"{method} {path} {line}" for method in operations for line in inline(operations[method]))
    for name, schema in document["components"]["schemas"].items():
        yield from schema_paths(schema, name)


def inline(operation: object) -> Iterator[str]:
    """Properties of answers that have no schema of their own."""
    if isinstance(operation, Mapping):
        for status, answer in operation.get("responses", {}).items():
            for content in answer.get("content", {}).values():
                yield from schema_paths(content.get("schema"), status)


def json_documents() -> Iterator[str]:
    for name, kind in DOCUMENTS.items():
        yield from fields(mi.type_info(kind), name)
    worker, sketch = WorkerReport("", "", "", "", "", "", 0, 0, 0, 0), Sketch()
    sketch.add(1.0)
    report = ProcessReport(1, "", 0, 0, 0, 0, (worker,), sketch.data(), sketch.data(), tenants={"web": (1, 0)})
    yield from json_paths(json.loads(state_body([report])), "gateway /state")
    yield from json_paths(status.as_json(observation()), "status --json")
    yield from json_paths(top.as_json(observation()), "top --format json")
    yield from json_paths(finding.as_json([finding.ok("python", "3.12")]), "doctor --format json")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        run_plan(parse_options(["plan", "--json"]))
    yield from json_paths(json.loads(printed.getvalue()), "plan --json")
    for name, pattern in WRITTEN_BY_HAND.items():
        yield from (f"{name}: {key}" for _, tree in syntax(pattern) for key in keys_in(ast.walk(tree)))
    yield from (f"gateway --config: {name}" for name in settings.IN_FILE)


def observation() -> Observation:
    process, target = ProcessRecord("prefill-0", "prefill", "ready", "r", 1, 1, "127.0.0.1", 1), TargetRecord(1.0, 95.0)
    worker = ObservedWorker(0, 0, 0, 0, 0, Transfer(links=(Link("127.0.0.1:2", "tcp"),)))
    record = RunRecord("chat", "default", 1, "http://127.0.0.1:1", "m", True, "", target, target, (process,))
    return Observation(record, ((process, worker),), process, GatewayState(tenants=(ObservedTenant("web", 1, 0),)))


def flags() -> Iterator[str]:
    from baton_worker import compile_ahead  # imports torch

    yield from options(command_line(commands(command_line(frozenset()))))
    for role in (Role.PREFILL, Role.DECODE, None):
        yield from options(worker_config.parser(role))
    for parse in (settings.parse_settings, operator_settings.parse, model_fetch.main, compile_ahead.main):
        yield from options(parser_of(functools.partial(parse, [])))


def metrics() -> Iterator[str]:
    from baton_testing import registries  # imports torch

    running = CollectorRegistry()
    running.register(operator_metrics.ApiCalls(lambda: {}))
    running.register(operator_metrics.AlteredGatewayFrames(lambda: 0))
    for process, registry in (
        ("worker", registries.worker_registry()),
        ("gateway", registries.gateway_registry()),
        ("sizing", registries.sizing_registry()),
        ("tenants", registries.tenants_registry()),
        ("operator", running),
        ("operator", operator_metrics.REGISTRY),
    ):
        for collector in registry._collector_to_names:
            for family in collector.collect():
                labels = {label for sample in family.samples for label in sample.labels} - {"le"}
                for source in (collector, family):
                    labels |= set(getattr(source, "_labelnames", ()))
                name = f"{family.name}_total" if family.type == "counter" else family.name
                yield f"{process} {family.type} {name}{{{', '.join(sorted(labels))}}}"


def files_and_objects() -> Iterator[str]:
    run = RunDir(Path("run"))
    paths = [getattr(run, name) for name, kind in vars(RunDir).items() if isinstance(kind, property)]
    yield from (str(path) for path in (*paths, run.discovery("prefill"), run.log("prefill-0")) if path != run.root)
    yield from (f"object {name}" for name in called(names, (str,), {str: "x", int: 0, Role: Role.PREFILL}))


def rotation_hashes() -> Iterator[str]:
    """The digest of a rotary embedding that prefill and decode workers of two releases compare."""
    config = json.loads((ROOT / "examples/tiny-llama/config.json").read_bytes())
    yarn = {"factor": 4.0, "original_max_position_embeddings": 512}
    llama3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512}
    for kind, scaling in (("default", {}), ("linear", {"factor": 4.0}), ("yarn", yarn), ("llama3", llama3)):
        spec = parse_spec(config | {"rope_scaling": {"rope_type": kind, **scaling}})
        yield f"{kind} {spec.rope_digest(2048)}"
    factors = {"short_factor": [1.0] * 16, "long_factor": [2.0] * 16}
    phi = {"model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "original_max_position_embeddings": 512}
    spec = parse_spec(config | phi | {"rope_scaling": {"type": "longrope", **factors}})
    yield f"longrope {spec.rope_digest(2048)}"


def example_objects() -> Iterator[tuple[str, dict[str, Any]]]:
    """(example, object) of everything that the operator makes of the shipped examples."""
    image = "registry.example.com/baton/worker@sha256:" + "a" * 64
    platform = Platform(image, image.replace("worker", "gateway"), monitoring_namespace="monitoring")
    owner = Owner("6f1c2f0e-8f57-4f7a-9a55-1d3b1c0f7a10")
    for path in sorted((ROOT / "examples").glob("*.yaml")):
        if path.name == "tiny.yaml":  # its model is a folder
            continue
        deployment = read_manifest(path)
        objects = [*standing_objects(deployment, platform, owner, {"2026-11": b"m" * 32})]
        for role in POOL_ROLES:
            objects.append(worker_deployment(deployment, worker_template(deployment, role, platform), 2, owner))
            objects.append(pool_facade(deployment, role, owner, 2))
        yield from ((path.stem, json.loads(json.dumps(rendered))) for rendered in objects)


def object_fields() -> Iterator[str]:
    for _, each in example_objects():
        yield from json_paths(each, each["kind"])


def object_hashes() -> Iterator[str]:
    for example, each in example_objects():
        yield f"{example} {each['kind']} {each['metadata']['name']} {content_hash(each)}"
        template = each.get("spec", {}).get("template", {}).get("spec", {})
        for container in template.get("containers", ()):
            yield from (f"{example} {each['kind']} {argument}" for argument in container.get("command", ()))


def entry_points() -> Iterator[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    yield from (f"{name} = {target}" for name, target in project["scripts"].items())
    yield from (f"-m {path.parent.name}" for path in ROOT.glob("*/baton_*/__main__.py"))
    places = ("charts/baton/**/*", "images/*", "docs/*.md", "scripts/*", "README.md", "Makefile", "*/baton_*/**/*.py")
    for path in (path for place in places for path in ROOT.glob(place) if path.is_file()):
        found = re.findall(r"-m[\"',]*\s+[\"']?(baton_\w+(?:\.\w+)*)", path.read_text(errors="replace"))
        yield from (f"-m {module} ({path.relative_to(ROOT).parts[0]})" for module in found)


def chart_values() -> Iterator[str]:
    yield from json_paths(yaml.safe_load((CHART / "values.yaml").read_text()), "")
    yield from schema_paths(json.loads((CHART / "values.schema.json").read_text()), "schema ")


SECTIONS: Mapping[str, Callable[[], Iterable[str]]] = {
    "gateway: statuses, types and codes of errors": problems,
    "gateway: codes of errors where they are raised": codes_where_raised,
    "gateway: errors in each API": error_dialects,
    "gateway: HTTP API (openapi.json)": api,
    "wire: version, reasons and other values": sent_values,
    "wire: messages, their numbers, places and names of fields": messages,
    "custom resources": custom_resources,
    "condition types": lambda: (*ConditionType, *PoolConditionType),
    "causes that keep a deployment back": lambda: (reason for line in WORST for reason in line),
    "operator: CamelCase words (reasons, Event reasons, kinds)": lambda: matching(CAMEL_CASE, "baton_operator"),
    "labels, annotations and other qualified names": lambda: matching(ON_OBJECTS),
    "environment variables and other capitals": lambda: matching(CAPITALS),
    "commands and flags": flags,
    "metrics": metrics,
    "JSON documents and configuration files": json_documents,
    "exit codes": lambda: (line for pattern in ENDS for line in returned_numbers(pattern)),
    "files of a run, names of objects": files_and_objects,
    "objects of the examples: fields": object_fields,
    "objects of the examples: arguments, hashes": object_hashes,
    "fingerprints of rotary embeddings": rotation_hashes,
    "entry points": entry_points,
    "chart values": chart_values,
    "words": words,
}


def difference(kept: Iterable[str], found: Iterable[str]) -> str:
    """A line for each name that went (-) or came (+); empty: none."""
    lines = difflib.unified_diff(sorted(set(kept)), sorted(set(found)), n=0, lineterm="")
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


@pytest.fixture(scope="module")
def listing() -> dict[str, list[str]]:
    if os.environ.get("BATON_WRITE_NAMES"):
        parts = ["\n".join((f"# {title}", *sorted(set(collect())))) for title, collect in SECTIONS.items()]
        LISTING.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    parts = LISTING.read_text(encoding="utf-8").removeprefix("# ").split("\n\n# ")
    return {title: lines for title, *lines in (part.splitlines() for part in parts)}


@pytest.mark.parametrize("title", SECTIONS)
def test_no_public_name_goes_or_changes(title: str, listing: dict[str, list[str]]) -> None:
    changed = difference(listing[title], SECTIONS[title]())
    assert not changed, f"{title}:\n{changed}\nOn purpose? See the docstring of {Path(__file__).name}."


def test_every_section_is_kept_and_holds_names(listing: dict[str, list[str]]) -> None:
    assert list(listing) == list(SECTIONS)
    assert all(listing.values())


def test_a_renamed_and_a_missing_name_show_in_the_difference() -> None:
    assert difference(["a", "b", "c"], ["c", "a2"]) == "-a\n-b\n+a2"
    assert difference(["b", "a", "a"], ["a", "b"]) == ""
