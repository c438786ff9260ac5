"""The packages in the images: for each role those that its processes import, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import image_requirements
import pytest

ROOT = Path(__file__).parents[3]
ALL = {path.parent.name for path in ROOT.glob("*/baton_*/py.typed")}
STARTED = {
    "operator": ("baton_operator.__main__",),
    "gateway": ("baton_gateway.__main__",),
    "worker-cpu": ("baton_prefill_worker.__main__", "baton_decode_worker.__main__", "baton_model_fetch.__main__"),
}


def packages(role: str) -> set[str]:
    steps = [str(ROOT / "images" / "steps.sh"), "packages", role]
    return set(subprocess.run(steps, capture_output=True, text=True, check=True, timeout=30).stdout.split())


@pytest.mark.parametrize("role", STARTED)
def test_the_processes_of_a_role_find_what_they_import_in_its_image(role: str) -> None:
    absent = sorted(ALL - packages(role))
    code = f"import importlib, sys\nsys.modules.update(dict.fromkeys({absent!r}))\n"
    code += "".join(f"importlib.import_module({module!r})\n" for module in STARTED[role])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_an_image_holds_nothing_of_the_other_roles() -> None:
    assert packages("operator") == {"baton_wire", "baton_control", "baton_operator"}
    assert packages("gateway") == {"baton_wire", "baton_gateway"}
    assert packages("worker-cuda") == packages("worker-cpu")
    assert not packages("worker-cpu") & {"baton_operator", "baton_control", "baton_gateway", "baton_local"}
    assert packages("all") == ALL


def test_modules_stand_compiled_in_an_image_and_are_the_same_bytes_each_time(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "module.py").write_text(
        "def place() -> str:\n    return __file__\n\nNAMES = {'a', 'b', 'c', 'd'}\n"
    )
    (tmp_path / "of_python_2.py").write_text("print 'never imported'\n")

    def compiled() -> bytes:
        steps = [str(ROOT / "images" / "steps.sh"), "bytecode", str(tmp_path), "/opt/baton"]
        subprocess.run(steps, check=True, timeout=60, env={**os.environ, "PYTHON": sys.executable})
        (path,) = tmp_path.rglob("*.pyc")
        return path.read_bytes()

    loaded = compiled()
    assert loaded == compiled()
    assert int.from_bytes(loaded[4:8], "little") == 0b01, (
        "by a hash that nothing is compared with: no times, no source read"
    )
    assert str(Path("/opt/baton") / "room" / "module.py").encode() in loaded


def test_the_context_of_a_build_holds_every_package() -> None:
    lines = (ROOT / "images" / "Dockerfile.dockerignore").read_text(encoding="utf-8").split()
    assert {Path(line).name for line in lines if "/baton_" in line} == ALL


HASH = "sha256:" + "a" * 64
ROLES = ("operator", "gateway", "worker-cpu", "worker-cuda", "all")


def test_a_file_of_hashes_that_does_not_fit_the_pins_is_named_by_package() -> None:
    text = f"# note\na==1.0 \\\n    --hash={HASH}\nb==2.0 ; python_version in '3.11' \\\n    --hash={HASH}\nc==3.0\n"
    requirements = image_requirements.read(text)
    assert requirements["a"] == image_requirements.Pin("1.0", "", (HASH,))
    assert requirements["b"].marker == "python_version in '3.11'"
    problems = list(
        image_requirements.role_problems("gateway", requirements, {"a": "1.0", "b": "2.1", "c": "3.0"}, {"a", "d", "c"})
    )
    assert problems == ["d is needed and missing", "b==2.0 is not what constraints.txt pins", "c has no hash"]
    with pytest.raises(ValueError, match="no pin"):
        image_requirements.read("a>=1.0\n")


@pytest.mark.parametrize("role", ROLES)
def test_pip_is_never_asked_for_anything_without_its_hash(role: str, tmp_path: Path) -> None:
    fake, calls = tmp_path / "python", tmp_path / "calls"
    fake.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n')
    fake.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(fake), "PIP_ARGS": "--pre", "TORCH_HASH": HASH}
    steps = [str(ROOT / "images" / "steps.sh"), "install", role, str(tmp_path / "site")]
    subprocess.run(steps, check=True, timeout=60, env=environment)
    asked = [line for line in calls.read_text().splitlines() if "-m pip" in line]
    assert len(asked) == 4
    for line in asked:
        assert "--require-hashes" in line or "--no-index" in line or "--no-build-isolation" in line, line
        assert "--no-deps" not in line or "--require-hashes" not in line, "pip looks whether the list is whole"


@pytest.mark.parametrize("role", ROLES)
def test_what_an_image_installs_has_an_exact_version_and_hashes(role: str) -> None:
    steps = [str(ROOT / "images" / "steps.sh"), "requirements", role]
    environment = {**os.environ, "TORCH_HASH": HASH}
    done = subprocess.run(steps, capture_output=True, text=True, check=True, timeout=30, env=environment)
    requirements = image_requirements.read(done.stdout)
    assert len(requirements) > 20
    assert all(pin.hashes for pin in requirements.values())
    if "torch" in requirements:
        assert (HASH in requirements["torch"].hashes, requirements["torch"].version.endswith("+cpu")) == (
            True,
            role != "worker-cuda",
        )
    bad = subprocess.run(
        steps, capture_output=True, text=True, check=False, timeout=30, env={**os.environ, "TORCH_HASH": "x"}
    )
    assert (bad.returncode, "TORCH_HASH" in bad.stderr) == (1, True)
