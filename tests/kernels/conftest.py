"""Where the Triton kernels run in these tests: compiled where there is a GPU, under Triton's interpreter elsewhere."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
import torch

from baton_testing.kernels.interpreting import interpreted_once


@pytest.fixture(scope="session", autouse=True)
def _interpreted_once() -> Iterator[None]:
    if importlib.util.find_spec("triton") is None or torch.cuda.is_available():
        yield
        return
    with interpreted_once():
        yield


@pytest.fixture
def triton_device() -> str:
    """Device of the tensors given to a Triton launcher; a test that takes it is marked `gpu` where there is one."""
    triton = pytest.importorskip("triton")
    has_gpu = torch.cuda.is_available()
    assert triton.knobs.runtime.interpret is not has_gpu, "TRITON_INTERPRET must be 1 without a GPU and unset with one"
    return "cuda" if has_gpu else "cpu"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before `-m` selects: with a GPU, the kernel comparisons are GPU tests."""
    if torch.cuda.is_available():
        for item in items:
            if isinstance(item, pytest.Function) and "triton_device" in item.fixturenames:
                item.add_marker(pytest.mark.gpu)
