"""Settings that must hold before any test module is imported."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from baton_testing.processes.prepared import Prepared, compiling

# The same examples on every run, and no limit on how long one takes: speed is measured elsewhere.
settings.register_profile("baton", derandomize=True, deadline=None)
settings.load_profile("baton")

# Triton reads this when first imported, by whichever test is first. Where there is a GPU its kernels compile instead.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# What importing and collecting leave stays until the end: no full collection has to walk those 900,000 objects.
gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def compiler() -> Iterator[Prepared]:
    """Runs programs that compile kernels for a GPU; elsewhere in the tests kernels are interpreted."""
    with compiling() as prepared:
        yield prepared
