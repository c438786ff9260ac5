"""Processes of two commits in one service: do they pair and answer alike, or refuse each other by name?

`make campaign RUN="mixed_versions --with REVISION"` takes each role once from the other commit, the rest here.
Every service answers the same greedy request, prefill and decode apart. An equal answer is success, and so is a
refusal that names both wire versions. Anything else exits with 1.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from pathlib import Path

from baton_testing.processes.child_process import NotReadyError
from baton_testing.processes.deployment import Deployment, Shape

ROOT = Path(__file__).resolve().parents[2]
ROLES = ("prefill", "decode", "gateway")
QUESTION = "Tell me the fable of the fox and the lantern."
_REQUEST_S = 60.0


def unpack(revision: str, folder: Path) -> str:
    """Puts the tree of `revision` into `folder`; the module path that runs it. Raises CalledProcessError."""
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tree:
        tree.extractall(folder, filter="data")
    return os.pathsep.join(sorted({str(package.parent) for package in folder.glob("*/baton_*/")}))


def answer(base_url: str) -> str:
    """One greedy chat answer. Raises OSError."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 48}
    request = urllib.request.Request(
        f"{base_url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=_REQUEST_S) as response:
        return str(json.load(response)["choices"][0]["message"]["content"])


def outcome(folder: Path, path: str, others: tuple[str, ...]) -> str:
    """The answer of a service whose roles `others` run from `path`, or the line in which it refuses."""
    environment = {role: {"PYTHONPATH": path} for role in others}
    flags = ("--disaggregation=always",)
    service = Deployment(folder, Shape(environment=environment, gateway_flags=flags))
    try:
        with service:
            return answer(service.base_url)
    except NotReadyError:
        logs = "\n".join(log.read_text() for log in folder.glob("*.log"))
        return next((line for line in logs.splitlines() if "version: " in line), "neither answered nor refused by name")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--with", dest="revision", required=True, help="the other commit")
    revision = parser.parse_args().revision
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = unpack(revision, folder / "other")
        expected = outcome(folder / "own", path, ())
        print(f"this tree alone: {expected!r}")
        bad = 0
        for others in (("prefill",), ("decode",), ("gateway",), ("prefill", "decode")):
            answer = outcome(folder / "-".join(others), path, others)
            is_right = answer == expected or "version: " in answer
            bad += not is_right
            print(f"{' and '.join(others)} from {revision}: {'equal answer' if answer == expected else answer}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
