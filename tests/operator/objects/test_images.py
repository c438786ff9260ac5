"""What stands in the images: each role's packages, which are all that its processes import, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
    code += "".join(f"importlib.import_module({each!r})\n" for each in STARTED[role])
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

    found = compiled()
    assert found == compiled()
    assert int.from_bytes(found[4:8], "little") == 0b01, (
        "by a hash that nothing is compared with: no times, no source read"
    )
    assert str(Path("/opt/baton") / "room" / "module.py").encode() in found


def test_the_context_of_a_build_holds_every_package() -> None:
    lines = (ROOT / "images" / "Dockerfile.dockerignore").read_text(encoding="utf-8").split()
    assert {Path(line).name for line in lines if "/baton_" in line} == ALL
