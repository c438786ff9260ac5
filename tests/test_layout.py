"""The repository's shape: names that cannot shadow, readable sizes, nothing that executes data, no stray facts.

Run first, and with the bare `pytest` executable: a package called `operator` keeps `python -m pytest` from starting.
"""

from __future__ import annotations

import ast
import functools
import importlib
import re
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "wire", "control", "simulate", "operator", "gateway", "kernels", "kv_transfer", "engine", "worker",
    "prefill_worker", "decode_worker", "flexible_worker", "model_fetch", "local",
)  # fmt: skip
RULE_OF_THUMB_LINES = 400
MAX_LINES = 600
LONGER: dict[str, str] = {
    "control/baton_control/rollout.py": "one planner: its facts, its rules and their order",
    "gateway/baton_gateway/workers/linked_workers.py": "one worker's reports and the table of all workers",
    "local/baton_local/options.py": "one table: every command with its options",
    "operator/baton_operator/schema/cel.py": "one table of rules",
    "tests/gateway/requests/test_held_runs.py": "one machine's cases",
    "tests/gateway/batches/test_batch_run.py": "one run of a batch and its cases",
    "kv_transfer/baton_kv_transfer/decode/machine.py": "one machine: a hand-over's events and their effects",
    "control/baton_control/telemetry/telemetry_server.py": "one link: proven, read, written, redirected",
    "control/baton_control/telemetry/store.py": "one store: what gateways report, and what is not known of them",
    "tests/control/telemetry/test_store.py": "one table of reports: what each says about the deployment",
    "control/baton_control/sizing/simulator/simulator.py": "one event loop: every event of a request and of a worker",
    "gateway/baton_gateway/structured_outputs/json_schema.py": "one reader: every keyword of a schema",
    "scripts/openapi.py": "one list: every field that a parser takes raw",
    "gateway/baton_gateway/http_api/routes.py": "one handler: a request from its body to the end of its answer",
    "gateway/baton_gateway/workers/links.py": "one link: dialled, proven, read, written, watched, dialled again",
    "gateway/baton_gateway/requests/request.py": "one machine: a request's events and their effects",
    "gateway/baton_gateway/requests/relay.py": "one shell: what requests' machines decide is carried out here",
    "kv_transfer/baton_kv_transfer/prefill/machine.py": "one machine: a hand-over's events and their effects",
    "tests/support/baton_testing/gateway/fake_worker.py": "one fake: a worker's link, its requests and their tokens",
    "tests/support/baton_testing/kube/scenarios.py": "one list: every scenario of the operator's campaigns",
    "e2e/test_rules.py": "one list: a case of every rule of the definitions",
    "tests/support/baton_testing/kube/world.py": "one run: an operator, its server and cluster, and what must hold",
}
"""Files over the rule of thumb, each with the reason why it is one thought."""
MAX_TREE_BYTES = 24 << 20
"""The tracked tree stays quick to copy to a machine that runs a part of the work."""
BANNED_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "managers", "misc", "lib", "base"}
DANGEROUS_MODULES = {"pickle", "cPickle", "_pickle", "marshal", "dill", "cloudpickle", "shelve", "joblib"}
DANGEROUS_CALLS = {"eval", "exec", "compile", "__import__"}
DANGEROUS_METHODS = {("torch", "load"), ("np", "load"), ("numpy", "load"), ("yaml", "load"), ("yaml", "unsafe_load")}
DANGEROUS_ARGUMENTS = {"object_hook", "ext_hook", "trust_remote_code", "shell"}
SAFE_YAML_LOADER = Path("control/baton_control/spec/manifest.py")
"""Calls yaml.load_all with its own subclass of the safe loader."""


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout: there is no list of tracked files")
    return [Path(name) for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


def python_files() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".py"]


@functools.cache
def tree_of(path: Path) -> ast.AST:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), str(path))


def trees() -> Iterator[tuple[Path, ast.AST]]:
    for path in python_files():
        yield path, tree_of(path)


def test_operator_is_the_standard_librarys() -> None:
    module = importlib.import_module("operator")
    assert module.__file__ is not None
    assert Path(module.__file__).parent == Path(sysconfig.get_paths()["stdlib"])


ONE_IDEA = {
    "Settings": "the flags of one process",
    "Heartbeat": "a sign of life, with each link's own number",
    "Verify": "what is verified of KV: as a field of the API and as the transfer takes it",
}
"""Public classes that stand in two packages or more, and the one idea that each stands for."""


def test_a_public_class_has_one_name_and_one_place() -> None:
    places: dict[str, set[Path]] = {}
    for path, tree in trees():
        if path.parts[0] in PACKAGES and path.parts[0] != "kernels" and isinstance(tree, ast.Module):
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and node.name[0] != "_":
                    places.setdefault(node.name, set()).add(path)
    assert {name for name, paths in places.items() if len(paths) > 1} == set(ONE_IDEA)


def test_no_top_level_folder_is_a_package() -> None:
    assert [str(path.relative_to(ROOT)) for path in ROOT.glob("*/__init__.py") if path.parent.name != "bench"] == []


def test_test_folders_are_no_packages() -> None:
    allowed = ROOT / "tests" / "support" / "baton_testing"
    found = [path for path in (ROOT / "tests").rglob("__init__.py") if path.parent != allowed]
    assert found == []


def test_no_tests_stand_below_the_operators_folder() -> None:
    names = [path.name for path in (ROOT / "operator").rglob("*.py")]
    assert [name for name in names if name.startswith("test_") or name == "conftest.py"] == []


@pytest.mark.parametrize("folder", PACKAGES)
def test_a_folder_holds_exactly_its_own_package(folder: str) -> None:
    packages = [path.parent.name for path in (ROOT / folder).glob("*/__init__.py")]
    assert packages == [f"baton_{folder}"]
    assert (ROOT / folder / f"baton_{folder}" / "py.typed").is_file()


def test_no_module_is_named_like_one_of_the_standard_library_or_after_nothing() -> None:
    taken = sys.stdlib_module_names - {"__main__", "__init__"}
    bad = []
    for path in python_files():
        if path.parts[0] not in PACKAGES:
            continue
        inside = [*path.parts[2:-1], path.stem]
        bad += [str(path) for name in inside if name in BANNED_NAMES or name in taken]
    assert bad == []


def test_a_long_python_file_has_its_reason() -> None:
    lengths = {str(path): len((ROOT / path).read_bytes().splitlines()) for path in python_files()}
    assert {path: lines for path, lines in lengths.items() if lines > MAX_LINES} == {}
    assert {path for path, lines in lengths.items() if lines > RULE_OF_THUMB_LINES} <= set(LONGER)


def test_every_module_says_what_it_owns() -> None:
    silent = [str(path) for path, tree in trees() if isinstance(tree, ast.Module) and not ast.get_docstring(tree)]
    assert silent == []


FACES: frozenset[str] = frozenset()
"""Rooms whose `__init__.py` imports the room's public names. Such a room imports nothing heavy (tested below)."""


def test_an_init_file_imports_nothing_unless_it_is_a_face() -> None:
    importing = [
        str(path.parent)
        for path, tree in trees()
        if path.name == "__init__.py" and any(_is_import(node) for node in ast.walk(tree))
    ]
    assert set(importing) <= FACES


def _is_import(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module != "__future__"
    return isinstance(node, ast.Import)


def test_no_modules_import_each_other_in_a_circle() -> None:
    imports = {_dotted(path): _imports_of(tree) for path, tree in trees() if path.parts[0] in PACKAGES}
    graph = {module: {name for name in names if name in imports} for module, names in imports.items()}
    assert [sorted(circle) for circle in _circles(graph)] == []


def _dotted(path: Path) -> str:
    return ".".join(path.with_suffix("").parts[1:]).removesuffix(".__init__")


def _imports_of(tree: ast.AST) -> set[str]:
    """Dotted names that a module imports anywhere, a name taken from a package as a module of it too."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def _circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected parts of two modules or more (Kosaraju)."""
    backwards: dict[str, set[str]] = {module: set() for module in graph}
    for module, targets in graph.items():
        for target in targets:
            backwards[target].add(module)
    finished: list[str] = []
    _visit_all(graph, list(graph), finished)
    circles, seen = [], set[str]()
    for module in reversed(finished):
        if module not in seen:
            part: list[str] = []
            _visit(backwards, module, seen, part)
            circles += [part] if len(part) > 1 else []
    return circles


def _visit_all(graph: dict[str, set[str]], modules: list[str], finished: list[str]) -> None:
    seen: set[str] = set()
    for module in modules:
        if module not in seen:
            _visit(graph, module, seen, finished)


def _visit(graph: dict[str, set[str]], start: str, seen: set[str], finished: list[str]) -> None:
    """Append every module reached from `start`, each after all that it reaches."""
    seen.add(start)
    path = [(start, iter(graph[start]))]
    while path:
        module, targets = path[-1]
        for target in targets:
            if target not in seen:
                seen.add(target)
                path.append((target, iter(graph[target])))
                break
        else:
            finished.append(module)
            path.pop()


def test_a_circle_is_found() -> None:
    assert [sorted(circle) for circle in _circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}})] == [["b", "c"]]


def test_nothing_executes_data() -> None:
    found = [f"{path}:{line}: {what}" for path, tree in trees() for line, what in dangers(tree, path)]
    assert found == []


def dangers(tree: ast.AST, path: Path) -> Iterator[tuple[int, str]]:
    """Every import, call or argument that could turn data into code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = {alias.name.partition(".")[0] for alias in node.names}
            yield from ((node.lineno, name) for name in names & DANGEROUS_MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if (name := node.module.partition(".")[0]) in DANGEROUS_MODULES:
                yield node.lineno, name
        elif isinstance(node, ast.Call):
            yield from ((node.lineno, what) for what in _dangers_of_call(node, path))


def _dangers_of_call(node: ast.Call, path: Path) -> Iterator[str]:
    function = node.func
    if isinstance(function, ast.Name) and function.id in DANGEROUS_CALLS:
        yield function.id
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        if (function.value.id, function.attr) in DANGEROUS_METHODS:
            yield f"{function.value.id}.{function.attr}"
        if function.value.id == "yaml" and function.attr == "load_all" and path != SAFE_YAML_LOADER:
            yield "yaml.load_all"
    for keyword in node.keywords:
        is_off = isinstance(keyword.value, ast.Constant) and keyword.value.value in (False, None)
        refuses = isinstance(keyword.value, ast.Name) and keyword.value.id.startswith("_refuse")
        if keyword.arg in DANGEROUS_ARGUMENTS and not (is_off or refuses):
            yield f"{keyword.arg}="


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from marshal import loads",
        "eval('1')",
        "torch.load(x)",
        "run(x, shell=True)",
        "f(object_hook=g)",
    ],
)
def test_the_search_for_what_executes_data_finds_it(code: str) -> None:
    assert list(dangers(ast.parse(code), Path("x.py")))


def test_the_tracked_tree_is_small() -> None:
    assert sum((ROOT / path).stat().st_size for path in tracked()) < MAX_TREE_BYTES


STRAY = re.compile(
    rb"(?<![\w.])/(?:root|home/\w+|work|opt/\w+)/[\w.-]+"  # a machine's own paths
    rb"|https?://(?!127\.0\.0\.1|localhost)[\w.-]*(?:artifactory|nexus|jfrog|internal|corp)[\w.-]*"  # registries
)


def test_no_file_tells_of_the_machine_it_was_written_on() -> None:
    found = []
    for path in tracked():
        data = (ROOT / path).read_bytes()
        if b"\0" not in data[:1024] and path != Path("tests/test_layout.py"):
            found += [f"{path}: {match.group().decode()}" for match in STRAY.finditer(data)]
    assert found == []


@pytest.mark.parametrize(
    ("package", "unwanted"),
    [("baton_operator", {"torch", "triton", "transformers"}), ("baton_gateway", {"torch", "triton", "numpy"})],
)
def test_every_module_of_the_operator_and_the_gateway_imports_without_torch(package: str, unwanted: set[str]) -> None:
    code = f"""
import importlib, pkgutil, sys
import {package}
for module in pkgutil.walk_packages({package}.__path__, "{package}."):
    try:
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    except ModuleNotFoundError as error:  # of an extra
        if not error.name.startswith("opentelemetry."):
            raise
heavy = sorted({{name.partition(".")[0] for name in sys.modules}} & {unwanted!r})
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def needs_of(extra: str) -> set[str]:
    """Names of the distributions that an extra brings directly, extras of our own resolved."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: set[str] = set()
    for text in (*project["dependencies"], *project["optional-dependencies"][extra]):
        requirement = Requirement(text)
        if requirement.name == project["name"]:
            found.update(*(needs_of(inner) for inner in requirement.extras))
        else:
            found.add(requirement.name)
    return found


@pytest.mark.parametrize("extra", ["operator", "gateway"])
def test_the_operator_and_gateway_extras_bring_no_torch(extra: str) -> None:
    assert not needs_of(extra) & {"torch", "triton", "transformers", "safetensors", "nixl-cu13"}


def test_the_worker_extra_brings_torch() -> None:
    assert "torch" in needs_of("worker")


def test_a_laptop_needs_neither_kubernetes_nor_what_only_developers_use() -> None:
    brought = needs_of("local")
    assert {"tokenizers", "torch", "pydantic"} <= brought
    assert not brought & {"kopf", "kubernetes", "triton", "nixl-cu13", "transformers", "pytest"}
    assert {"kopf", "kubernetes"} <= needs_of("operator")


def test_every_module_of_a_laptop_imports_where_there_is_no_kubernetes() -> None:
    code = """
import importlib, pkgutil, sys
sys.modules.update({"kopf": None, "kubernetes": None})
import baton_local
for module in pkgutil.walk_packages(baton_local.__path__, "baton_local."):
    importlib.import_module(module.name)
of_operator = {name for name in sys.modules if name.startswith("baton_operator.objects.")}
assert of_operator == {"baton_operator.objects.pod_policy", "baton_operator.objects.allowed_env"}, of_operator
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
