"""An operator that has nothing to size stays small; the first decision is the same as any other."""

from __future__ import annotations

import subprocess
import sys


def test_numpy_is_not_imported_at_the_start() -> None:
    loaded = "import sys, baton_operator.__main__; print('numpy' in sys.modules, 'baton_control' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.split() == ["False", "True"]
