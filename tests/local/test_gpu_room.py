"""The memory of GPUs against what workers need, before any starts."""

from __future__ import annotations

import pytest

from baton_control.worker_specs import Device
from baton_local.errors import StartError
from baton_local.fleet.gpu_room import (
    CONTEXT_BYTES,
    LEAST_KV_BYTES,
    Gpu,
    GpuNeed,
    check_gpus,
    free_by_id,
    gpu_need,
    parse_gpus,
    shared_kv,
    with_kv,
    workers_by_gpu,
)
from baton_testing.engine.tiny_llama import FOLDER
from baton_testing.kube.manifests import deployment
from baton_wire.messages.values import Role

GB = 10**9
LISTING = """\
0, GPU-0d0e8a1c-1111, 140000, 143000, NVIDIA H200, 570.1
1, GPU-5c9b77aa-2222, [N/A], [N/A], NVIDIA H200, 570.1
a line of another form
"""
P, D = Role.PREFILL, Role.DECODE


def need(weights: int = 16 * GB, first: int = 1, most: int = 1, kv: int | None = None) -> GpuNeed:
    return GpuNeed(weights, "bfloat16", {P: first, D: first}, {P: most, D: most}, {P: kv, D: kv})


def test_the_listing_of_the_driver_is_read_and_an_unknown_figure_stays_unknown() -> None:
    first, second = parse_gpus(LISTING)
    assert first == Gpu("0", "GPU-0d0e8a1c-1111", 140_000 << 20, 143_000 << 20, "NVIDIA H200", "570.1")
    assert second.free_bytes is None
    assert parse_gpus("") == ()


def test_gpus_are_named_by_index_by_uuid_or_not_known() -> None:
    gpus = parse_gpus(LISTING)
    names = ["0", "1", "GPU-0d0e", "MIG-77", "7"]
    assert free_by_id(names, gpus, False) == {
        "0": 140_000 << 20, "1": None, "GPU-0d0e": 140_000 << 20, "MIG-77": None, "7": None,
    }  # fmt: skip


def test_an_index_among_different_gpus_may_be_the_largest_of_them() -> None:
    gpus = (Gpu("0", "GPU-a", 8 * GB, 8 * GB, "small", "1"), Gpu("1", "GPU-b", 80 * GB, 80 * GB, "large", "1"))
    assert free_by_id(["0", "1"], gpus, False) == {"0": 80 * GB, "1": 80 * GB}
    assert free_by_id(["0", "1"], gpus, True) == {"0": 8 * GB, "1": 80 * GB}


def test_weights_that_do_not_fit_are_refused_with_the_gpu_both_figures_and_what_helps() -> None:
    with pytest.raises(StartError) as refused:
        check_gpus(need(), {"0": 24 * GB})
    message = str(refused.value)
    assert message.startswith(
        "GPU 0: its workers need 2 × 16.0 GB for weights in bfloat16, 0.6 GB each for CUDA, and 24"
    )
    assert "each worker holds a copy" in message
    assert "baton quantise" in message
    check_gpus(need(), {"0": 24 * GB, "1": 24 * GB})
    check_gpus(need(), {"0": None})
    check_gpus(need(), {"0": 34 * GB})
    with pytest.raises(StartError, match=r"and 10\.0 GB for KV, and 24\.0 GB are free;"):
        check_gpus(need(kv=10 * GB), {"0": 24 * GB, "1": 24 * GB})


def test_workers_go_to_the_gpu_with_the_fewest() -> None:
    assert workers_by_gpu({P: 2, D: 2}, ["a", "b", "c"]) == {"a": [P, D], "b": [P], "c": [D]}


def test_workers_that_share_a_gpu_share_its_memory() -> None:
    size = shared_kv(need(), {"0": 100 * GB})
    assert size is not None
    assert 2 * (16 * GB + CONTEXT_BYTES + size) <= 100 * GB
    assert size > 25 * GB
    assert shared_kv(need(), {"0": 100 * GB, "1": 100 * GB}) is None, "each has a GPU of its own"
    assert shared_kv(need(), {"0": None}) is None
    assert shared_kv(need(kv=GB), {"0": 100 * GB}) is None, "their sizes are given"
    wide = shared_kv(need(most=2), {"0": 100 * GB})
    assert wide is not None
    assert 4 * (16 * GB + CONTEXT_BYTES + wide) <= 100 * GB
    assert shared_kv(need(most=9), {"0": 40 * GB}) == LEAST_KV_BYTES, "sizing may add workers that do not fit"


def test_a_need_is_read_from_the_model_and_the_pools_on_gpus() -> None:
    gpus = {P: Device.CUDA, D: Device.CUDA}
    given = deployment(decode__replicas={"min": 2, "max": 5}, prefill__engine={"kvCacheMemory": "64Mi"})
    both = gpu_need(given, FOLDER, gpus)
    assert both is not None
    assert (both.first, both.most, both.kv) == ({P: 1, D: 2}, {P: both.most[P], D: 5}, {P: 64 << 20, D: None})
    wide = gpu_need(deployment(model__dtype="float32"), FOLDER, gpus)
    half = gpu_need(deployment(model__dtype="bfloat16"), FOLDER, gpus)
    assert wide is not None
    assert half is not None
    assert wide.weights == 2 * half.weights > 0
    one = gpu_need(given, FOLDER, {P: Device.CPU, D: Device.CUDA})
    assert one is not None
    assert one.first == {D: 2}
    sized = with_kv(given, both, 512 << 20)
    assert sized.spec.decode.engine.kv_cache_memory == 512 << 20
    assert sized.spec.prefill == given.spec.prefill


def test_a_need_with_offloaded_layers_is_not_known() -> None:
    gpu = {"resource": "nvidia.com/gpu"}
    given = deployment(prefill__accelerator=gpu, prefill__engine={"offloadedLayers": 1})
    assert gpu_need(given, FOLDER, {P: Device.CUDA, D: Device.CPU}) is None


def test_a_deployment_without_a_decode_pool_needs_no_gpu_for_one() -> None:
    found = gpu_need(deployment(model__tasks=["Embed"]), FOLDER, {P: Device.CUDA, D: Device.CUDA})
    assert found is not None
    assert (found.first, found.most) == ({P: 1}, {P: 1})
