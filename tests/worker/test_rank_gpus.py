"""The GPUs that ranks take, and machines on which ranks cannot have any."""

from __future__ import annotations

import pytest

from baton_worker.building.rank_gpus import SHARE_VARIABLE, FoundGpu, check_gpus, rank_gpus
from baton_worker.errors import ConfigError

H200 = FoundGpu("NVIDIA H200", 150_754_820_096)
H100 = FoundGpu("NVIDIA H100 80GB HBM3", 85_017_493_504)
SLICE = FoundGpu("NVIDIA H200", 75_161_927_680)


def reach(first: int, second: int) -> str | None:
    return None


def test_ranks_take_the_first_gpus_in_order() -> None:
    assert check_gpus(2, [H200, H200, H100], reach) == (0, 1)


@pytest.mark.parametrize(
    ("gpus", "message"),
    [
        ([], r"--tensor-parallel: 2, but this machine has 0 GPUs; allowed: up to 1$"),
        ([H200], r"--tensor-parallel: 2, but this machine has 1 GPUs; allowed: up to 1$"),
        ([H200, H100], r"GPU 1 is NVIDIA H100 80GB HBM3 .* and GPU 0 is NVIDIA H200 .*; allowed .*: equal GPUs$"),
        ([H200, SLICE], r"GPU 1 is NVIDIA H200 with 75161927680 bytes and GPU 0 is NVIDIA H200 with 150754820096"),
    ],
    ids=["none", "too few", "unequal models", "unequal memory"],
)
def test_too_few_and_unequal_gpus_are_refused(gpus: list[FoundGpu], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_gpus(2, gpus, reach)


@pytest.mark.parametrize("one_way", [(0, 1), (1, 0), (2, 3)])
def test_gpus_without_access_to_each_other_are_refused(one_way: tuple[int, int]) -> None:
    def objection(first: int, second: int) -> str | None:
        return "GPUs are apart" if (first, second) == one_way else None

    with pytest.raises(ConfigError, match="argument --tensor-parallel: 4, but GPUs are apart; allowed here: 1"):
        check_gpus(4, [H200] * 4, objection)


def test_only_tests_let_ranks_share_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert rank_gpus(4, {SHARE_VARIABLE: "1"}) == (0, 0, 0, 0)
    with pytest.raises(ConfigError, match="has 0 GPUs"):
        rank_gpus(4, {})
