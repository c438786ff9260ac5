"""The wheel as a user has it: built, installed into an environment of its own, and serving from there.

What Baton requires is seen through the folder of the environment that runs the tests; Baton itself is not, so that
whatever answers came out of the wheel.
"""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from baton_testing.processes.baton_up import READY_S, manifest
from baton_testing.processes.child_process import environment, wait_for

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parents[2]
PIP_S = 300


@dataclass(frozen=True)
class Installed:
    wheel: Path
    bin: Path
    folder: Path

    def run(self, *command: str) -> str:
        """Outside the repository, with nothing of it on the path."""
        return subprocess.run(
            [str(self.bin / command[0]), *command[1:]], cwd=self.folder, env=clean(), check=True, text=True,
            capture_output=True, timeout=PIP_S,
        ).stdout  # fmt: skip


def clean() -> dict[str, str]:
    return {name: value for name, value in environment().items() if not name.startswith("PYTHON")}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run([*pip, *build], check=True, timeout=PIP_S)
    [wheel] = folder.glob("*.whl")
    home = folder / "environment"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    site = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True, text=True, capture_output=True, timeout=60,
    ).stdout.strip()  # fmt: skip
    # A plain line of a path file: the folder is searched, its own path files (the editable Baton) are not read.
    specs = [importlib.util.find_spec(name) for name in ("aiohttp", "numpy", "pydantic", "torch", "tokenizers")]
    paths = sorted({str(Path(spec.origin).parents[1]) for spec in specs if spec is not None and spec.origin})
    (Path(site) / "requirements.pth").write_text("".join(f"{path}\n" for path in paths))
    install = ["--python", str(python), "install", "--no-deps", "--no-index", "--force-reinstall", str(wheel)]
    subprocess.run([*pip, *install], check=True, timeout=PIP_S)
    return Installed(wheel, home / "bin", folder)


def test_every_file_of_the_packages_is_in_the_wheel(installed: Installed) -> None:
    listed = subprocess.run(["git", "ls-files", "-z", "*/baton_*"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout: there is no list of tracked files")
    tracked = {
        name.partition("/")[2] for name in listed.stdout.decode().split("\0") if re.match(r"\w+/baton_\w+/", name)
    }
    names = set(zipfile.ZipFile(installed.wheel).namelist())
    assert tracked - names == set()
    packages = {name.partition("/")[0] for name in names if not name.split("/")[0].endswith(".dist-info")}
    assert packages == {name.partition("/")[0] for name in tracked}, "and nothing else is"


def test_the_installed_packages_are_those_of_the_wheel(installed: Installed) -> None:
    code = "import baton_gateway, baton_local; print(baton_gateway.__file__, baton_local.__file__)"
    for path in installed.run("python", "-c", code).split():
        assert path.startswith(str(installed.folder)), path


def test_the_console_script_says_what_it_can_do(installed: Installed) -> None:
    assert "up" in installed.run("baton", "--help")


@pytest.fixture
def endpoint(installed: Installed) -> Iterator[str]:
    """`baton up` of the installed wheel."""
    file = installed.folder / "tiny.yaml"
    file.write_text(json.dumps(manifest("wheel")))  # JSON is YAML
    runtime = installed.folder / "runtime"
    runtime.mkdir(mode=0o700)
    log = installed.folder / "up.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [str(installed.bin / "baton"), "up", "-f", str(file), "--port", "0"], cwd=installed.folder,
            env=clean() | {"XDG_RUNTIME_DIR": str(runtime)}, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def ready() -> str | None:
        assert process.poll() is None, log.read_text()
        match = re.search(r"^ready (http://\S+)$", log.read_text(), re.MULTILINE)
        return match.group(1) if match else None

    try:
        yield wait_for(ready, "the ready line", READY_S)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(120)


def test_baton_up_answers_from_the_installed_wheel(endpoint: str) -> None:
    body = json.dumps({"model": "tiny", "prompt": "x", "max_tokens": 3}).encode()
    request = Request(f"{endpoint}/v1/completions", body, {"Content-Type": "application/json"})
    with urlopen(request, timeout=60) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] == 3
    for path, field in (("/openapi.json", "paths"), ("/version", "version")):
        with urlopen(f"{endpoint}{path}", timeout=60) as answer:
            content = json.load(answer)
            assert content[field]
    assert content["version"] == version("baton-serving")
