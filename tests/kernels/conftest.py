"""Devices that the kernel tests run on: Triton under its interpreter, or compiled where there is a GPU."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(params=["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)])
def triton_device(request: pytest.FixtureRequest) -> str:
    """Device of the tensors given to a Triton launcher."""
    pytest.importorskip("triton")
    has_gpu = torch.cuda.is_available()
    if request.param == "cuda":
        if not has_gpu:
            pytest.skip("no GPU")
        return "cuda"
    if has_gpu:
        pytest.skip("kernels compile for the GPU here; the interpreter is for machines without one")
    return "cpu"
