"""Which PyTorch `make install` takes, decided before anything is downloaded, and what it says when it cannot."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"baton_scripts_{name}", SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


install = load("install_torch")
PINNED, INDEX = "2.13.0", "https://example.org/cpu"
CPU = install.Release("2.13.0+cpu", ("filelock", "sympy>=1.13.3"))
PLAIN_CPU = install.Release("2.13.0", ("filelock",))
CUDA = install.Release("2.13.0", ("filelock", "nvidia-nccl-cu13==2.29.7"))
LOCAL_CUDA = install.Release("2.13.0+cu130", ())


@pytest.mark.parametrize(
    ("offers", "wants_cuda", "taken"),
    [
        ({"torch==2.13.0+cpu": CPU, "torch==2.13.0": CPU}, False, "torch==2.13.0+cpu"),
        ({"torch==2.13.0": PLAIN_CPU}, False, "torch==2.13.0"),
        ({"torch==2.13.0": CUDA, "torch==2.13.0 at index": CPU}, False, "torch==2.13.0 at index"),
        ({"torch==2.13.0": CUDA}, False, None),
        ({"torch==2.13.0": CUDA, "torch==2.13.0 at index": LOCAL_CUDA}, False, None),
        ({"torch==2.13.0": CUDA}, True, "torch==2.13.0"),
        ({"torch==2.13.0": LOCAL_CUDA}, True, "torch==2.13.0"),
        ({"torch==2.13.0": CPU, "torch===2.13.0": CUDA}, True, "torch===2.13.0"),
        ({"torch==2.13.0": CPU}, True, None),
        ({}, False, None),
    ],
)
def test_the_first_build_of_the_wanted_kind_is_taken(
    offers: dict[str, object], wants_cuda: bool, taken: str | None
) -> None:
    def key(candidate: object) -> str:
        return " at ".join(["index" if part == INDEX else part for part in vars_of(candidate) if part])

    chosen = install.choose(install.candidates(PINNED, wants_cuda, INDEX), wants_cuda, lambda c: offers.get(key(c)))
    assert (None if chosen is None else key(chosen[0])) == taken


def vars_of(candidate: object) -> tuple[str, str | None]:
    return (candidate.requirement, candidate.index)  # type: ignore[attr-defined]  # of a module loaded by path


@pytest.mark.parametrize(
    ("installed", "wish", "expected"),
    [
        ("2.13.0+cpu", None, True),
        ("2.11.1+cu128", None, True),
        ("2.11.1+cu128", "cpu", True),
        ("2.13.0", "cuda", True),
        ("2.13.0+cpu", "cuda", False),
        ("2.10.0", None, False),
        ("2.14.0", None, False),
        ("3.0", None, False),
        (None, None, False),
    ],
)
def test_a_fitting_pytorch_is_kept(installed: str | None, wish: str | None, expected: bool) -> None:
    assert install.is_kept(installed, (2, 11), (2, 14), wish) is expected


def test_constraints_name_exactly_what_is_installed() -> None:
    lines = ["numpy==2.4.6", "torch==2.13.0", "triton==3.7.1"]
    assert install.constraint_lines(lines, "2.13.0+cpu", PINNED) == [
        "numpy==2.4.6",
        "triton==3.7.1",
        "torch==2.13.0+cpu",
    ]
    assert install.constraint_lines(lines, "2.12.0+cu128", PINNED) == ["numpy==2.4.6", "torch==2.12.0+cu128"]


def test_the_range_is_that_of_the_worker_extra() -> None:
    low, high = install._range()
    assert low <= (2, 13) < high


def run_install(tmp_path: Path, python: Path) -> str:
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPTS / "install.sh", tmp_path / "scripts")
    command = [str(tmp_path / "scripts" / "install.sh"), "dev"]
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": str(python)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stdout
    assert not (tmp_path / ".venv").exists()
    return done.stderr


def fake_python(tmp_path: Path, script: str) -> Path:
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_a_python_that_is_too_old_is_refused_in_one_line(tmp_path: Path) -> None:
    assert "make install: needs Python 3.11 or newer" in run_install(tmp_path, fake_python(tmp_path, "exit 1"))


def test_a_python_without_venv_is_refused_with_what_to_install(tmp_path: Path) -> None:
    script = f'case "$2" in *ensurepip*) exit 1;; *) exec {sys.executable} "$@";; esac'
    printed = run_install(tmp_path, fake_python(tmp_path, script))
    assert "has no venv module" in printed
    assert f"apt install python{sys.version_info[0]}.{sys.version_info[1]}-venv" in printed


def test_constraints_cover_everything_that_is_needed_and_nothing_else() -> None:
    freeze = load("freeze")
    pins = {"a": "1.0", "b": "2.0"}
    assert freeze.problems(pins, {"a", "c"}) == ["c is needed and not pinned", "b is pinned and not needed"]
    assert freeze.read_pins("# note\na==1.0\nb==2.0\n") == pins


def test_what_baton_needs_is_read_from_pyproject_and_not_from_the_last_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found in an environment that was installed before a package was added: its pin was called needless."""
    freeze = load("freeze")
    project = tmp_path / "pyproject.toml"
    monkeypatch.setattr(freeze, "PROJECT", project)
    project.write_text(
        '[project]\ndependencies = ["packaging>=1"]\n[project.optional-dependencies]\ndev = ["pluggy>=1"]\n'
    )
    assert freeze.closure("baton-serving", ("dev",)) == {"packaging", "pluggy"}
    pins = {"packaging": "1.0", "pluggy": "0.9"}
    assert freeze.problems(pins, set(pins)) == ["pluggy==0.9 is outside >=1"]
