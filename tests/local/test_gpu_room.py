"""The memory of GPUs against what workers need, before any starts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton_control.worker_specs import Device
from baton_kernels.exchange.rank_region import REGION_BYTES
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
    assert workers_by_gpu({P: 2, D: 2}, ["a", "b", "c"], {}) == {"a": [P, D], "b": [P], "c": [D]}


def test_the_ranks_of_a_worker_go_to_gpus_of_their_own() -> None:
    assert workers_by_gpu({P: 1, D: 2}, list("abcd"), {P: 2}) == {"a": [P], "b": [P], "c": [D], "d": [D]}
    assert workers_by_gpu({P: 1, D: 1}, list("ab"), {P: 2, D: 2}) == {"a": [P, D], "b": [P, D]}
    assert workers_by_gpu({P: 1, D: 1}, list("abc"), {P: 2, D: 2}) == {"a": [P, D], "b": [P], "c": [D]}
    assert workers_by_gpu({P: 1, D: 1}, list("ab"), {D: 2}) == {"a": [P, D], "b": [D]}


def test_each_gpu_of_a_worker_holds_a_share_of_the_weights_and_of_the_kv() -> None:
    shared = GpuNeed(140 * GB, "bfloat16", {P: 1}, {P: 1}, {P: 40 * GB}, {P: 4}, 4 * GB)
    assert (shared.weights_at(P), shared.kv_at(P)) == (34 * GB + 4 * GB, 10 * GB), "each holds the embeddings"
    check_gpus(shared, dict.fromkeys("0123", 50 * GB))
    with pytest.raises(StartError) as refused:
        check_gpus(shared, {**dict.fromkeys("012", 50 * GB), "3": 48 * GB})
    assert str(refused.value).startswith(
        "GPU 3: its workers need 38.0 GB for weights in bfloat16, 1.3 GB each for CUDA and 10.0 GB for KV, and 48.0 GB"
    )


def test_a_worker_of_several_ranks_takes_more_for_cuda_and_for_the_exchange() -> None:
    assert need().extra_at(P) == CONTEXT_BYTES
    assert replace(need(), ranks={P: 2}).extra_at(P) >= 2 * CONTEXT_BYTES + REGION_BYTES


def test_workers_of_unequal_degrees_on_one_gpu_are_refused_with_the_share_of_each() -> None:
    unequal = replace(need(), ranks={P: 2})
    check_gpus(unequal, {"0": 27 * GB, "1": 10 * GB})
    with pytest.raises(
        StartError, match=r"GPU 0: its workers need 8\.0 GB \+ 16\.0 GB for weights in bfloat16, 1\.3 GB"
    ):
        check_gpus(unequal, {"0": 25 * GB, "1": 10 * GB})


def test_more_ranks_are_named_where_the_workers_would_fit_with_them() -> None:
    large = replace(need(140 * GB, kv=GB), embeddings=2 * GB, degrees=(1, 2, 4, 8))
    with pytest.raises(
        StartError, match=r"or share each model out over 4 GPUs \(tensorParallel, `--tensor-parallel 4`"
    ):
        check_gpus(large, dict.fromkeys("01234567", 60 * GB))
    with pytest.raises(StartError, match=r"or share each model out over 2 GPUs"):
        check_gpus(large, dict.fromkeys("0123", 80 * GB))
    for few in (dict.fromkeys("01", 80 * GB), dict.fromkeys("0123", 40 * GB), {"0": 80 * GB, "1": None}):
        with pytest.raises(StartError, match=r"lists it\), or serve a smaller model"):
            check_gpus(large, few)


def test_fewer_ranks_are_named_where_the_workers_would_fit_with_them_alone() -> None:
    """Found: two GPUs with a half of each model were to share it out over "1 GPUs"."""
    both = replace(need(), ranks={P: 2, D: 2}, degrees=(1, 2))
    with pytest.raises(StartError, match=r"or keep each model on one GPU \(tensorParallel, `--tensor-parallel 1`\),"):
        check_gpus(both, dict.fromkeys("01", 17 * GB))


def test_ranks_that_share_a_gpu_share_its_memory() -> None:
    both = replace(need(), ranks={P: 2, D: 2})
    size = shared_kv(both, {"0": 100 * GB, "1": 60 * GB})
    assert size is not None
    assert 2 * (both.least_at(P) + size) <= 60 * GB, "by the fuller of both GPUs"
    assert size > 15 * GB
    assert shared_kv(both, dict.fromkeys("0123", 100 * GB)) is None, "each has two GPUs of its own"
    sized = with_kv(deployment(prefill__tensorParallel=2), replace(need(), ranks={P: 2, D: 1}), GB)
    assert sized.spec.prefill.engine.kv_cache_memory == 2 * GB, "the flag counts for all ranks of a worker"
    assert sized.spec.decode.engine.kv_cache_memory == GB


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
    assert (one.ranks, one.embeddings, one.degrees) == ({D: 1}, 1024 * 128 * 2, (1, 2, 4))
    ranked = gpu_need(deployment(prefill__tensorParallel=2, model__dtype="bfloat16"), FOLDER, gpus)
    assert ranked is not None
    assert (ranked.ranks, ranked.weights) == ({P: 2, D: 1}, half.weights)
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
