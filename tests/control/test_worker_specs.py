"""Rendering worker templates: the flags that workers really take, and text that can never become an option."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_control.errors import ManifestError, UnsupportedError
from baton_control.spec.quantities import OtlpUrl
from baton_control.worker_specs import Device, Site, WorkerSpec, gateway_spec, instance_arguments, worker_spec
from baton_gateway.answers.formats import FormatNames
from baton_gateway.settings import parse_settings
from baton_testing.kube.manifests import deployment
from baton_wire.messages.values import POOL_ROLES, Role
from baton_worker.config import parse

SITE = Site(
    python="/usr/bin/python3",
    model_path="/models/tiny",
    keys_path="/keys",
    prefill_discovery="file:/run/prefill.json",
    decode_discovery="file:/run/decode.json",
    prefill_device=Device.CPU,
    decode_device=Device.CPU,
)

GPU = {"resource": "nvidia.com/gpu"}


def flags(spec: WorkerSpec) -> dict[str, str]:
    parts = (argument.removeprefix("--").partition("=") for argument in spec.argv[3:])
    return {name: value for name, _, value in parts}


def test_a_certificate_needs_a_place_with_secrets() -> None:
    wanted = deployment(gateway__tls={"secretName": "cert"})
    spec = gateway_spec(wanted, dataclasses.replace(SITE, tls_path="/etc/tls"))
    arguments = (*spec.argv[3:], *instance_arguments(Role.GATEWAY, "127.0.0.1:0", "/run/a.json"))
    assert str(parse_settings(list(arguments)).tls) == "/etc/tls"
    with pytest.raises(UnsupportedError, match=r"spec\.gateway\.tls"):
        gateway_spec(wanted, SITE)


def test_api_keys_need_a_place_with_secrets_or_a_file() -> None:
    wanted = deployment(gateway__apiKeys={"secretName": "clients"})
    for written in (wanted, deployment()):
        spec = gateway_spec(written, dataclasses.replace(SITE, api_keys_path="/etc/api-keys"))
        arguments = (*spec.argv[3:], *instance_arguments(Role.GATEWAY, "127.0.0.1:0", "/run/a.json"))
        assert str(parse_settings(list(arguments)).api_keys) == "/etc/api-keys"
    with pytest.raises(UnsupportedError, match=r"spec\.gateway\.apiKeys.*--api-key-file"):
        gateway_spec(wanted, SITE)
    assert not any(argument.startswith("--api-keys") for argument in gateway_spec(deployment(), SITE).argv)


@pytest.mark.parametrize(("wanted", "value"), [(True, "on"), (False, "off")])
def test_the_gateway_is_told_whether_the_models_sampling_defaults_count(wanted: bool, value: str) -> None:
    spec = gateway_spec(deployment(model__generationDefaults=wanted), SITE)
    arguments = (*spec.argv[3:], *instance_arguments(Role.GATEWAY, "127.0.0.1:0", "/run/a.json"))
    assert parse_settings(list(arguments)).generation_defaults == value


@pytest.mark.parametrize("wanted", ["Refuse", "Ignore"])
def test_the_gateway_is_told_what_becomes_of_unknown_fields(wanted: str) -> None:
    spec = gateway_spec(deployment(gateway__unknownFields=wanted), SITE)
    arguments = (*spec.argv[3:], *instance_arguments(Role.GATEWAY, "127.0.0.1:0", "/run/a.json"))
    assert parse_settings(list(arguments)).unknown_fields == wanted.lower()


@pytest.mark.parametrize("wanted", ["Refuse", "Clamp"])
def test_the_gateway_is_told_what_becomes_of_requests_for_too_many_tokens(wanted: str) -> None:
    spec = gateway_spec(deployment(gateway__limits={"oversizedMaxTokens": wanted}), SITE)
    arguments = (*spec.argv[3:], *instance_arguments(Role.GATEWAY, "127.0.0.1:0", "/run/a.json"))
    assert parse_settings(list(arguments)).oversized_max_tokens == wanted.lower()
    assert (spec.revision == gateway_spec(deployment(), SITE).revision) is (wanted == "Refuse")


@given(st.from_regex(re.compile(get_args(OtlpUrl)[1].pattern, re.ASCII), fullmatch=True), st.floats(0, 1))
def test_the_gateway_understands_every_endpoint_of_traces_that_a_manifest_may_name(url: str, ratio: float) -> None:
    tracing = {"endpoint": url.rstrip("\n"), "sampleRatio": ratio}
    spec = gateway_spec(deployment(telemetry={"tracing": tracing}), SITE)
    settings = parse_settings([*spec.argv[3:], *instance_arguments(Role.GATEWAY, "127.0.0.1:0", "/run/a.json")])
    assert settings.tracing_sample_ratio == pytest.approx(ratio, rel=1e-5)
    assert settings.tracing_endpoint is not None
    assert settings.tracing_endpoint.startswith(url.rstrip("\n/"))
    plain = gateway_spec(deployment(), SITE)
    assert not [flag for flag in plain.argv if "tracing" in flag]
    for role in POOL_ROLES:
        traced = deployment(telemetry={"tracing": tracing})
        assert worker_spec(traced, role, SITE) == worker_spec(deployment(), role, SITE)


def test_formats_of_answers_reach_the_gateway_and_no_worker() -> None:
    plain, named = deployment(), deployment(model__toolFormat="pythonic", model__reasoningFormat="none")
    spec = gateway_spec(named, SITE)
    arguments = (*spec.argv[3:], *instance_arguments(Role.GATEWAY, "127.0.0.1:0", "/run/a.json"))
    assert parse_settings(list(arguments)).formats == FormatNames("pythonic", "none")
    for role in POOL_ROLES:
        assert worker_spec(named, role, SITE) == worker_spec(plain, role, SITE)


def test_aliases_reach_the_gateway_and_no_worker() -> None:
    plain, named = deployment(), deployment(model__aliases=["gpt-4o", "team/chat:latest"])
    spec = gateway_spec(named, SITE)
    arguments = (*spec.argv[3:], *instance_arguments(Role.GATEWAY, "127.0.0.1:0", "/run/a.json"))
    assert parse_settings(list(arguments)).model_aliases == (("gpt-4o", "tiny"), ("team/chat:latest", "tiny"))
    for role in POOL_ROLES:
        assert worker_spec(named, role, SITE) == worker_spec(plain, role, SITE), "a new name restarts no worker"


@pytest.mark.parametrize("role", POOL_ROLES)
def test_a_worker_understands_what_is_rendered_for_it(role: Role) -> None:
    site = dataclasses.replace(SITE, drain_s=7.5, threads=2)
    engine = {"kvCacheMemory": "64Mi", "blockTokens": 16, "maxSequences": 8, "maxStepTokens": 512}
    wanted = deployment(prefill__engine=engine, decode__engine=engine, kvTransfer={"verify": "stamps"})
    spec = worker_spec(wanted, role, site)
    second = "127.0.0.1:0" if role is Role.DECODE else None
    arguments = (*spec.argv[3:], *instance_arguments(role, "127.0.0.1:0", "/run/a.json", second))
    config = parse(role, arguments)
    assert (config.model, config.served_name, config.max_context_tokens) == ("/models/tiny", "tiny", 512)
    assert (config.kv_cache_bytes, config.block_tokens, config.max_sequences) == (64 << 20, 16, 8)
    assert (config.verify, config.transport, config.dtype, config.device) == ("stamps", "auto", "float32", "cpu")
    assert (config.template_hash, config.threads, config.drain_s) == (spec.revision.template, 2, 7.5)
    assert (config.max_step_tokens, str(config.announce)) == (512, "/run/a.json")
    assert config.decode_discovery == ("file:/run/decode.json" if role is Role.PREFILL else None)


@pytest.mark.parametrize(
    ("fields", "keeps"),
    [
        ({}, True),
        ({"routing__keepAnswers": False}, False),
        ({"routing__disaggregation": "Always"}, False),
        ({"routing__disaggregation": "Never"}, False),
        ({"prefill__engine": {"offloadedLayers": 4}, "prefill__accelerator": GPU}, False),
        ({"prefill__engine": {"offloadedLayers": 4, "offloadDecode": True}, "prefill__accelerator": GPU}, True),
    ],
)
def test_prefill_workers_keep_answers_where_prompts_go_where_they_are_served_better(
    fields: dict[str, object], keeps: bool
) -> None:
    site = dataclasses.replace(SITE, prefill_device=Device.CUDA)
    spec = worker_spec(deployment(**fields), Role.PREFILL, site)
    arguments = (*spec.argv[3:], *instance_arguments(Role.PREFILL, "127.0.0.1:0", "/run/a.json"))
    assert parse(Role.PREFILL, arguments).keep_answers is keeps
    assert "--keep-answers" not in worker_spec(deployment(**fields), Role.DECODE, site).argv


def test_the_gateway_understands_what_is_rendered_for_it() -> None:
    wanted = deployment(
        gateway={
            "processes": 3,
            "limits": {"maxRequestDuration": "90s", "maxQueueDuration": "1500ms", "maxQueued": 99},
        },
        routing={"disaggregation": "Never", "prefillUnavailable": "DecodeLocally"},
    )
    spec = gateway_spec(wanted, dataclasses.replace(SITE, drain_s=9.0))
    instance = instance_arguments(Role.GATEWAY, "127.0.0.1:0", "/run/a.json", "127.0.0.1:0")
    settings = parse_settings([*spec.argv[3:], *instance])
    assert (settings.processes, settings.max_request_duration_s, settings.drain_s) == (3, 90.0, 9.0)
    assert (settings.max_queue_s, settings.max_queued) == (1.5, 99)
    assert (settings.disaggregation, settings.prefill_unavailable) == ("never", "decode-locally")


@given(
    source=st.text(max_size=40).map(lambda text: f"file://{text}"),
    served=st.text(max_size=40),
)
def test_text_of_a_manifest_stays_inside_one_value(source: str, served: str) -> None:
    try:
        wanted = deployment(model__source=source, model__servedName=served)
    except ManifestError:
        return
    for role in POOL_ROLES:
        spec = worker_spec(wanted, role, SITE)
        assert len(spec.argv) == len(worker_spec(deployment(), role, SITE).argv)
        written = [argument for argument in spec.argv[3:] if argument != "--keep-answers"]
        assert all(argument.startswith("--") and "=" in argument for argument in written)
        assert flags(spec)["served-name"] == served


def test_the_template_hash_follows_the_template_and_nothing_else() -> None:
    base = worker_spec(deployment(), Role.DECODE, SITE).revision
    assert worker_spec(deployment(decode__replicas={"min": 2, "max": 9}), Role.DECODE, SITE).revision == base
    assert worker_spec(deployment(slo__ttft={"target": "1s"}), Role.DECODE, SITE).revision == base
    assert worker_spec(deployment(prefill__engine={"blockTokens": 8}), Role.DECODE, SITE).revision == base
    other = worker_spec(deployment(decode__engine={"blockTokens": 8}), Role.DECODE, SITE).revision
    assert other.template != base.template
    assert other.fit == base.fit


def test_a_new_target_replaces_no_worker() -> None:
    """The gateway sends it with each request."""
    changed = deployment(slo__tpot={"target": "12ms"})
    for role in POOL_ROLES:
        assert worker_spec(changed, role, SITE) == worker_spec(deployment(), role, SITE)
    assert flags(gateway_spec(changed, SITE))["slo-tpot-s"] == "0.012"


def test_pools_of_one_deployment_fit_and_another_model_does_not() -> None:
    wanted, other = deployment(), deployment(model__source="file://other")
    fits = {worker_spec(wanted, role, SITE).revision.fit for role in POOL_ROLES}
    assert len(fits) == 1
    elsewhere = dataclasses.replace(SITE, model_path="/models/other")
    assert worker_spec(other, Role.PREFILL, elsewhere).revision.fit not in fits


@pytest.mark.parametrize("degree", [2, 4, 8])
def test_pools_of_unequal_degrees_fit_and_each_worker_gets_its_own(degree: int) -> None:
    wanted = deployment(prefill__tensorParallel=degree)
    prefill, decode = (worker_spec(wanted, role, SITE) for role in POOL_ROLES)
    assert flags(prefill)["tensor-parallel"] == str(degree)
    assert "tensor-parallel" not in flags(decode)
    assert prefill.revision.fit == decode.revision.fit
    assert prefill.revision.template != worker_spec(deployment(), Role.PREFILL, SITE).revision.template
    assert (prefill.accelerators, prefill.accelerator_resource) == (0, None)


def test_a_degree_of_one_is_the_same_template_as_none() -> None:
    """An older worker does not know the flag."""
    for role in POOL_ROLES:
        named = worker_spec(deployment(prefill__tensorParallel=1, decode__tensorParallel=1), role, SITE)
        assert named == worker_spec(deployment(), role, SITE)
        assert "tensor-parallel" not in flags(named)


def test_ranks_on_gpus_of_the_site_hand_kv_over_by_tcp() -> None:
    on_gpus = dataclasses.replace(SITE, decode_device=Device.CUDA)
    wanted = deployment(prefill__tensorParallel=2, decode__tensorParallel=2)
    assert flags(worker_spec(wanted, Role.DECODE, on_gpus))["tensor-parallel"] == "2"
    by_ucx = deployment(prefill__tensorParallel=2, decode__tensorParallel=2, kvTransfer={"transport": "UCX"})
    assert flags(worker_spec(by_ucx, Role.PREFILL, on_gpus))["transport"] == "ucx", "these ranks compute on CPUs"
    with pytest.raises(UnsupportedError, match=r"spec\.kvTransfer\.transport: UCX is not allowed: several ranks with"):
        worker_spec(by_ucx, Role.DECODE, on_gpus)
    one_rank = deployment(prefill__tensorParallel=2, kvTransfer={"transport": "UCX"})
    assert flags(worker_spec(one_rank, Role.DECODE, on_gpus))["transport"] == "ucx"


def test_a_rank_takes_an_accelerator_of_the_pool() -> None:
    wanted = deployment(prefill__tensorParallel=4, prefill__accelerator=GPU, decode__accelerator=GPU)
    prefill, decode = (worker_spec(wanted, role, SITE) for role in POOL_ROLES)
    assert (prefill.accelerators, prefill.accelerator_resource) == (4, "nvidia.com/gpu")
    assert (decode.accelerators, decode.accelerator_resource) == (1, "nvidia.com/gpu")


def test_flexible_workers_have_one_degree() -> None:
    with pytest.raises(
        UnsupportedError, match=r"flips: prefill and decode have unequal `tensorParallel`: must be equal"
    ):
        worker_spec(deployment(autoscaling__flips=True, decode__tensorParallel=2), Role.PREFILL, SITE)


STAGED = [{"name": "pipeline-parallel", "value": "4"}]


def test_stages_reach_prefill_workers_which_then_keep_no_answers() -> None:
    wanted = deployment(prefill__arguments=STAGED)
    prefill = flags(worker_spec(wanted, Role.PREFILL, SITE))
    assert prefill["pipeline-parallel"] == "4"
    assert "keep-answers" not in prefill
    assert "keep-answers" in flags(worker_spec(deployment(), Role.PREFILL, SITE))
    assert flags(worker_spec(wanted, Role.DECODE, SITE)) == flags(worker_spec(deployment(), Role.DECODE, SITE))


@pytest.mark.parametrize(
    ("role", "changed", "device", "message"),
    [
        (Role.DECODE, {"decode__arguments": STAGED}, Device.CPU, "decode.arguments: .*needs the token of the step"),
        (Role.PREFILL, {"prefill__arguments": STAGED}, Device.CUDA, "prefill.arguments: .*compute on CPUs only"),
        (
            Role.PREFILL,
            {"prefill__arguments": STAGED, "decode__arguments": STAGED, "autoscaling__flips": True},
            Device.CPU,
            "prefill.arguments: .*workers that flip decode",
        ),
    ],
)
def test_stages_are_refused_where_they_cannot_compute(
    role: Role, changed: dict[str, Any], device: Device, message: str
) -> None:
    site = dataclasses.replace(SITE, prefill_device=device, decode_device=device)
    with pytest.raises(UnsupportedError, match=rf"spec\.{message}"):
        worker_spec(deployment(**changed), role, site)


def test_transport_and_bandwidth_reach_the_workers() -> None:
    wanted = deployment(kvTransfer={"transport": "UCX", "minBandwidth": "10GB/s"})
    for role in POOL_ROLES:
        argv = worker_spec(wanted, role, SITE).argv
        assert "--transport=ucx" in argv
        assert "--min-bandwidth=1e+10" in argv


def test_float8_kv_reaches_workers_on_gpus_and_is_refused_on_cpus() -> None:
    gpus = {"accelerator": {"resource": "nvidia.com/gpu"}}
    wanted = deployment(model__kvCacheDtype="fp8", prefill=gpus, decode=gpus)
    on_gpus = dataclasses.replace(SITE, prefill_device=Device.CUDA, decode_device=Device.CUDA)
    for role in POOL_ROLES:
        spec, usual = worker_spec(wanted, role, on_gpus), worker_spec(deployment(), role, on_gpus)
        assert "--kv-cache-dtype=fp8" in spec.argv
        assert not [argument for argument in usual.argv if "kv-cache-dtype" in argument]
        assert spec.revision.fit != usual.revision.fit
        with pytest.raises(UnsupportedError, match=r"spec\.model\.kvCacheDtype: fp8 is not supported on CPUs"):
            worker_spec(wanted, role, SITE)


def test_offloaded_layers_reach_prefill_workers_and_decode_workers_only_on_purpose() -> None:
    gpus = {"accelerator": {"resource": "nvidia.com/gpu"}}
    on_gpus = dataclasses.replace(SITE, prefill_device=Device.CUDA, decode_device=Device.CUDA)
    wanted = deployment(prefill={**gpus, "engine": {"offloadedLayers": 8}}, decode=gpus)
    argv = worker_spec(wanted, Role.PREFILL, on_gpus).argv
    assert "--offloaded-layers=8" in argv
    assert not [argument for argument in worker_spec(wanted, Role.DECODE, on_gpus).argv if "offload" in argument]
    with pytest.raises(UnsupportedError, match=r"spec\.prefill\.engine\.offloadedLayers: not supported on CPUs"):
        worker_spec(wanted, Role.PREFILL, SITE)
    with pytest.raises(ManifestError, match="offloadDecode allows it"):
        deployment(decode={**gpus, "engine": {"offloadedLayers": 8}})
    forced = deployment(decode={**gpus, "engine": {"offloadedLayers": 8, "offloadDecode": True}})
    assert "--offload-decode" in worker_spec(forced, Role.DECODE, on_gpus).argv


def test_accelerators_are_counted_per_worker() -> None:
    spec = worker_spec(deployment(decode__accelerator={"resource": "nvidia.com/gpu"}), Role.DECODE, SITE)
    assert (spec.accelerators, spec.accelerator_resource) == (1, "nvidia.com/gpu")
    assert worker_spec(deployment(), Role.DECODE, SITE).accelerators == 0


def test_origins_of_pages_reach_the_gateway() -> None:
    spec = gateway_spec(deployment(gateway__allowedOrigins=["https://a.example", "http://localhost:3000"]), SITE)
    arguments = [argument for argument in spec.argv if argument.startswith("--")]
    assert parse_settings(arguments).allowed_origins == ("https://a.example", "http://localhost:3000")
    assert not any("origins" in argument for argument in gateway_spec(deployment(), SITE).argv)


def test_sizes_of_the_engine_reach_the_workers_flags_and_chunks_fit_into_a_step() -> None:
    sized = deployment(decode__engine={"chunkTokens": 64, "maxWaiting": 9, "maxStepTokens": 128})
    argv = worker_spec(sized, Role.DECODE, SITE).argv
    assert {"--chunk-tokens=64", "--max-waiting=9", "--max-step-tokens=128"} <= set(argv)
    assert not any(
        argument.startswith(("--chunk", "--max-waiting")) for argument in worker_spec(sized, Role.PREFILL, SITE).argv
    )
    for engine in ({"chunkTokens": 129, "maxStepTokens": 128}, {"chunkTokens": 8193}):
        with pytest.raises(ManifestError, match=r"chunkTokens: .* must be at most maxStepTokens"):
            deployment(decode__engine=engine)


def test_workers_that_flip_have_one_template_and_are_told_as_what_they_begin() -> None:
    pool = {"replicas": {"min": 1, "max": 3}, "engine": {"maxSequences": 8}}
    wanted = deployment(prefill=pool, decode=pool | {"replicas": {"min": 2, "max": 2}}, autoscaling={"flips": True})
    specs = {role: worker_spec(wanted, role, SITE) for role in POOL_ROLES}
    assert specs[Role.PREFILL].revision == specs[Role.DECODE].revision
    assert specs[Role.PREFILL].argv == specs[Role.DECODE].argv
    for role, spec in specs.items():
        assert spec.flips
        assert "pair" in spec.ports
        more = instance_arguments(role, "127.0.0.1:0", "/run/a.json", "127.0.0.1:0", flips=spec.flips)
        config = parse(None, (*spec.argv[3:], *more))
        assert (config.role, config.flips, config.max_sequences) == (role, True, 8)
        assert (config.decode_discovery, config.prefill_discovery) == (SITE.decode_discovery, SITE.prefill_discovery)
    plain = deployment(prefill=pool, decode=pool)
    assert worker_spec(plain, Role.PREFILL, SITE).revision.template != specs[Role.PREFILL].revision.template


@pytest.mark.parametrize(
    ("decode", "site", "says"),
    [
        ({"engine": {"maxSequences": 9}}, SITE, "prefill and decode have unequal `engine`: must be equal"),
        ({}, dataclasses.replace(SITE, decode_device=Device.CUDA), "prefill computes on cpu and decode on cuda"),
    ],
)
def test_workers_of_unlike_pools_do_not_flip(decode: dict[str, object], site: Site, says: str) -> None:
    pool: dict[str, object] = {"replicas": {"min": 1, "max": 3}}
    wanted = deployment(prefill=pool, decode=pool | decode, autoscaling={"flips": True})
    for role in POOL_ROLES:
        with pytest.raises(UnsupportedError, match=rf"spec\.autoscaling\.flips: {says}"):
            worker_spec(wanted, role, site)
