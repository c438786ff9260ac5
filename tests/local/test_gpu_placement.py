"""The GPUs that workers of several ranks get on one machine, as it is described: no GPU is needed."""

from __future__ import annotations

import pytest

from baton_control.errors import UnsupportedError
from baton_control.worker_specs import Device
from baton_local.fleet.gpu_placement import SlotGpus, check_ranks, least_taken
from baton_testing.kube.manifests import deployment
from baton_wire.messages.values import Role

GPUS = {Role.PREFILL: Device.CUDA, Role.DECODE: Device.CUDA}
VISIBLE = "CUDA_VISIBLE_DEVICES"


def test_a_worker_gets_the_gpus_with_the_fewest_workers_in_the_order_of_the_machine() -> None:
    assert least_taken("abcd", {}, 1) == ("a",)
    assert least_taken("abcd", {"a": 1}, 2) == ("b", "c")
    assert least_taken("abcd", {"a": 2, "b": 1, "c": 2, "d": 1}, 2) == ("b", "d")
    assert least_taken("abcd", {"b": 1, "c": 1}, 4) == ("a", "b", "c", "d")
    assert least_taken("dab", {"d": 1}, 3) == ("d", "a", "b"), "the order that the machine gives, not that of the names"


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_no_two_ranks_of_a_worker_share_a_gpu_and_no_gpu_has_two_workers_more_than_another(
    count: int, ranks: int
) -> None:
    gpus = [str(number) for number in range(count)]
    workers = dict.fromkeys(gpus, 0)
    for _ in range(7):
        taken = least_taken(gpus, workers, ranks)
        assert len(set(taken)) == len(taken) == min(ranks, count)
        for gpu in taken:
            workers[gpu] += 1
        assert max(workers.values()) - min(workers.values()) <= 1


def test_workers_get_gpus_of_their_own_while_there_are_some() -> None:
    gpus = SlotGpus(("0", "1", "2", "3"))
    assert gpus.environment("prefill-0", 2) == {VISIBLE: "0,1"}
    assert gpus.environment("decode-0", 1) == {VISIBLE: "2"}
    assert gpus.environment("decode-1", 1) == {VISIBLE: "3"}
    assert gpus.environment("prefill-1", 2) == {VISIBLE: "0,1"}, "more workers than GPUs share them"


def test_a_worker_that_starts_again_gets_the_same_gpus() -> None:
    gpus = SlotGpus(("0", "1", "2", "3"))
    first = gpus.environment("prefill-0", 2)
    gpus.environment("decode-0", 2)
    assert gpus.environment("prefill-0", 2) == first == {VISIBLE: "0,1"}


def test_the_gpus_of_a_worker_that_is_gone_are_the_next_ones_to_be_taken() -> None:
    gpus = SlotGpus(("GPU-a", "GPU-b", "GPU-c"))
    for slot, ranks in (("prefill-0", 2), ("decode-0", 1)):
        gpus.environment(slot, ranks)
    gpus.forget("prefill-0")
    gpus.forget("never-there")
    assert gpus.environment("decode-1", 2) == {VISIBLE: "GPU-a,GPU-b"}


def test_a_machine_without_gpus_sets_no_variable() -> None:
    assert SlotGpus(()).environment("prefill-0", 1) == {}


def test_more_ranks_than_gpus_are_refused_by_field_with_what_is_there() -> None:
    wanted = deployment(prefill__tensorParallel=2, decode__tensorParallel=4)
    check_ranks(wanted, GPUS, ("0", "1", "2", "3"))
    with pytest.raises(UnsupportedError) as refused:
        check_ranks(wanted, GPUS, ("0", "2", "5"))
    assert str(refused.value) == (
        "spec.decode.tensorParallel: 4 is not allowed: each rank takes a GPU, and this machine has 3 GPUs (0, 2, 5); "
        "allowed: 1, 2"
    )
    with pytest.raises(UnsupportedError, match=r"spec\.prefill\.tensorParallel: 2 .*has one GPU; allowed: 1$"):
        check_ranks(wanted, GPUS, ("0",))


def test_ranks_on_cpus_take_no_gpu() -> None:
    wanted = deployment(prefill__tensorParallel=8, decode__tensorParallel=1)
    check_ranks(wanted, {**GPUS, Role.PREFILL: Device.CPU}, ("0",))
    check_ranks(wanted, dict.fromkeys(GPUS, Device.CPU), ())
