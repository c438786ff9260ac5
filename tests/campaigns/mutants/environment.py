"""The environment of the mutation tool, outside the repository: made at the first use, kept between runs."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

REQUIREMENT = "cosmic-ray==8.7.0"
_LIMIT_S = 600


def interpreter() -> Path:
    """The environment's Python. Raises subprocess.SubprocessError with pip's words on stderr."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "baton" / "mutants"
    stamp, python = folder / "complete", folder / "bin" / "python"
    if stamp.exists() and stamp.read_text() == REQUIREMENT:
        return python
    venv.create(folder, with_pip=True, clear=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", REQUIREMENT]
    subprocess.run(pip, check=True, stdout=sys.stderr, timeout=_LIMIT_S)
    stamp.write_text(REQUIREMENT)
    return python
