"""Additions of a deployment to its Pods: where they appear, that they replace nothing, and which are refused."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest

from baton_control.errors import ManifestError
from baton_control.spec.manifest import parse_object
from baton_control.spec.pod_options import RESERVED_ARGUMENTS
from baton_control.spec.reserved_env import is_reserved
from baton_operator.objects.allowed_env import SAFE_ENV, idle_entries, refusal
from baton_operator.objects.cluster import Owner, Platform
from baton_operator.objects.desired import standing_objects
from baton_operator.objects.pod_policy import PodPolicy
from baton_operator.objects.pods import worker_template
from baton_testing.kube.manifests import KUBERNETES, deployment, manifest
from baton_testing.kube.pod_security import violations
from baton_testing.kube.world import MASTERS
from baton_wire.messages.values import Role
from baton_worker.config import parser

Json = dict[str, Any]
DIGEST = "registry.example.com/baton@sha256:"
PLATFORM = Platform(DIGEST + "a" * 64, DIGEST + "b" * 64)
PVC = {"model__source": "pvc://models/a"}
HUB: Json = {"model__source": "hf://org/model@" + "a" * 40}
OPTIONS: Json = {
    "decode__env": [{"name": "UCX_NET_DEVICES", "value": "$(HOME):1"}, {"name": "OMP_NUM_THREADS", "value": "64"}],
    "decode__volumes": [
        {"name": "ca", "mountPath": "/mnt/ca", "configMapName": "ca"},
        {"name": "data", "mountPath": "/mnt/data", "claimName": "data", "readOnly": False},
    ],
    "decode__sharedMemory": "8Gi",
    "decode__hugepages": {"pageSize": "2Mi", "size": "1Gi"},
    "decode__resources": {"memory": "16Gi", "cpu": "4"},
    "decode__placement": {"topologyKey": "example.com/rack", "spread": "Required"},
}


def pod_of(role: Role, **fields: Any) -> Json:
    pod_template: Any = worker_template(deployment(**{**PVC, **fields}), role, PLATFORM).pod
    pod: Json = pod_template
    return pod


def build_deployment(kind: str, name: str, **fields: Any) -> Json:
    objects: Any = standing_objects(deployment(**{**PVC, **fields}), PLATFORM, Owner("u"), MASTERS)
    match: Json = next(
        manifest for manifest in objects if (manifest["kind"], manifest["metadata"]["name"]) == (kind, name)
    )
    return match


def test_options_land_in_the_workers_pod_and_replace_nothing_of_batons() -> None:
    plain, pod = pod_of(Role.DECODE), pod_of(Role.DECODE, **OPTIONS)
    container = pod["spec"]["containers"][0]
    env = {variable["name"]: variable["value"] for variable in container["env"]}
    assert env["UCX_NET_DEVICES"] == "$$(HOME):1", "taken literally"
    assert env["OMP_NUM_THREADS"] == "4", "Baton's own value wins"
    own = {variable["name"] for variable in plain["spec"]["containers"][0]["env"]}
    assert own < env.keys()
    assert len(env) == len(container["env"])
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert {mount["mountPath"] for mount in plain["spec"]["containers"][0]["volumeMounts"]} < mounts.keys()
    assert mounts["/mnt/ca"]["readOnly"] is True
    assert mounts["/mnt/data"]["readOnly"] is False
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert len(volumes) == len(pod["spec"]["volumes"])
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
    assert mounts["/dev/shm"]["name"] == "shm"
    resources = container["resources"]
    assert resources["limits"]["hugepages-2Mi"] == resources["requests"]["hugepages-2Mi"] == "1Gi"
    assert volumes["hugepages"]["emptyDir"] == {"medium": "HugePages-2Mi"}
    constraint = pod["spec"]["topologySpreadConstraints"][0]
    assert (constraint["topologyKey"], constraint["whenUnsatisfiable"]) == ("example.com/rack", "DoNotSchedule")
    assert violations(pod["spec"]) == []
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", **pod["metadata"]}, "spec": pod["spec"]}
    for version in KUBERNETES:
        kubernetes_validate.validate(body, version, strict=True)


AFFINITY: Json = {
    "nodeAffinity": [
        {
            "matchExpressions": [
                {"key": "example.com/gpu", "values": ["h200", "h100"]},
                {"key": "old", "operator": "DoesNotExist"},
            ]
        },
        {"weight": 20, "matchExpressions": [{"key": "mem", "operator": "Gt", "values": ["80"]}]},
    ],
    "podAffinity": [{"weight": 50, "matchLabels": {"baton.dev/role": "prefill"}, "topologyKey": "example.com/rack"}],
    "podAntiAffinity": [{"matchLabels": {"app": "batch"}, "topologyKey": "kubernetes.io/hostname"}],
}


@pytest.mark.parametrize("role", [Role.DECODE, Role.GATEWAY])
def test_affinity_is_that_of_kubernetes_within_the_namespace(role: Role) -> None:
    fields = {f"{role}__placement": AFFINITY}
    kind = "Deployment"
    pod = (
        pod_of(role, **fields)
        if role is Role.DECODE
        else build_deployment(kind, "chat-gateway", **fields)["spec"]["template"]
    )
    affinity = pod["spec"]["affinity"]
    required, preferred = (f"{kind}DuringSchedulingIgnoredDuringExecution" for kind in ("required", "preferred"))
    assert affinity["nodeAffinity"][required] == {
        "nodeSelectorTerms": [
            {
                "matchExpressions": [
                    {"key": "example.com/gpu", "operator": "In", "values": ["h200", "h100"]},
                    {"key": "old", "operator": "DoesNotExist"},
                ]
            }
        ]
    }
    assert affinity["nodeAffinity"][preferred] == [
        {"weight": 20, "preference": {"matchExpressions": [{"key": "mem", "operator": "Gt", "values": ["80"]}]}}
    ]
    near = {"labelSelector": {"matchLabels": {"baton.dev/role": "prefill"}}, "topologyKey": "example.com/rack"}
    assert affinity["podAffinity"] == {preferred: [{"weight": 50, "podAffinityTerm": near}]}
    away = {"labelSelector": {"matchLabels": {"app": "batch"}}, "topologyKey": "kubernetes.io/hostname"}
    assert affinity["podAntiAffinity"] == {required: [away]}
    assert "namespace" not in str(affinity)
    assert violations(pod["spec"]) == []
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", **pod["metadata"]}, "spec": pod["spec"]}
    for version in KUBERNETES:
        kubernetes_validate.validate(body, version, strict=True)


@pytest.mark.parametrize(
    ("field", "wrong", "message"),
    [
        ("nodeAffinity", {"matchExpressions": []}, "a list of 1 to 8 entries"),
        ("nodeAffinity", {"matchExpressions": [{"key": "a"}]}, "entries with operator In"),
        ("nodeAffinity", {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["x"]}]}, "one whole number"),
        ("nodeAffinity", {"matchExpressions": [{"key": "-"}]}, r"\[0\]\.key: '-' is not allowed[^;]*$"),
        ("podAffinity", {"matchLabels": {}, "topologyKey": "zone"}, "of 1 to 8 entries"),
        ("podAffinity", {"matchLabels": {"a": "b"}, "topologyKey": "zone", "namespaces": ["x"]}, "namespaces"),
        ("podAntiAffinity", {"matchLabels": {"a": "b"}, "topologyKey": "zone", "weight": 101}, "from 1 to 100"),
    ],
)
def test_affinity_that_can_mean_nothing_is_refused_by_its_field(field: str, wrong: Json, message: str) -> None:
    with pytest.raises(ManifestError, match=message) as caught:
        parse_object(manifest(decode__placement={field: [wrong]}))
    assert f"spec.decode.placement.{field}[0]" in str(caught.value)


def test_workers_get_flags_one_argument_each_and_an_identity_that_restarts_nothing() -> None:
    given = [{"name": "landing-bytes", "value": "65536 --keys=/tmp $(HOME)"}, {"name": "quiet"}]
    command = pod_of(Role.DECODE, decode__arguments=given)["spec"]["containers"][0]["command"]
    assert "--landing-bytes=65536 --keys=/tmp $$(HOME)" in command, "one argument, and nothing in it is expanded"
    assert "--quiet" in command
    assert len([argument for argument in command if argument.startswith("--keys=")]) == 1
    marks = {"decode__serviceAccountAnnotations": {"iam.example.com/role": "reader"}}
    assert build_deployment("ServiceAccount", "chat-decode", **marks)["metadata"]["annotations"] == {
        "iam.example.com/role": "reader"
    }
    assert "annotations" not in build_deployment("ServiceAccount", "chat-prefill", **marks)["metadata"]
    assert pod_of(Role.DECODE, **marks) == pod_of(Role.DECODE)


@pytest.mark.parametrize(
    "name", ["keys", "listen", "model", "template-hash", "paced", "--landing-bytes", "a b", "A", ""]
)
def test_flags_of_batons_own_and_what_is_no_flag_are_refused_by_name(name: str) -> None:
    with pytest.raises(ManifestError, match=r"spec\.decode\.arguments\[0\]\.name: .*(Baton sets it|must be 1 to 64)"):
        parse_object(manifest(decode__arguments=[{"name": name}]))


@pytest.mark.parametrize(("degree", "shared"), [(2, "512Mi"), (4, "1024Mi"), (8, "2048Mi")])
def test_ranks_of_a_pod_have_shared_memory_and_their_part_of_its_cpus(degree: int, shared: str) -> None:
    fields: Json = {"decode__tensorParallel": degree, "decode__resources": {"cpu": 8, "memory": "16Gi"}}
    pod, alone = pod_of(Role.DECODE, **fields), pod_of(Role.DECODE, **{**fields, "decode__tensorParallel": 1})
    container, only = pod["spec"]["containers"][0], alone["spec"]["containers"][0]
    assert f"--tensor-parallel={degree}" in container["command"]
    assert f"--threads={8 // degree}" in container["command"]
    assert {"name": "OMP_NUM_THREADS", "value": str(8 // degree)} in container["env"]
    assert "--threads=8" in only["command"]
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": shared}
    assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
    assert "shm" not in {volume["name"] for volume in alone["spec"]["volumes"]}
    assert len(pod["spec"]["containers"]) == 1, "ranks are processes of the worker's own container"
    assert (container["ports"], container["resources"]) == (only["ports"], only["resources"])
    assert violations(pod["spec"]) == []


def test_a_worker_with_fewer_cpus_than_ranks_has_one_thread_in_each() -> None:
    container = pod_of(Role.DECODE, decode__tensorParallel=8, decode__resources={"cpu": 2})["spec"]["containers"][0]
    assert "--threads=1" in container["command"]


@pytest.mark.parametrize("degree", [2, 4, 8])
def test_each_rank_has_an_accelerator_of_its_own(degree: int) -> None:
    gpus: Json = {"decode__accelerator": {"resource": "nvidia.com/gpu", "with": {"rdma/ib": 1}}}
    pod = pod_of(Role.DECODE, **gpus, decode__tensorParallel=degree)
    container = pod["spec"]["containers"][0]
    assert f"--tensor-parallel={degree}" in container["command"]
    for amounts in container["resources"].values():
        assert amounts == {"nvidia.com/gpu": str(degree), "rdma/ib": "1"}, "what is `with` it counts for the worker"
    assert violations(pod["spec"]) == []


def test_a_named_size_of_shared_memory_wins_over_that_for_ranks() -> None:
    pod = pod_of(Role.DECODE, decode__tensorParallel=2, decode__sharedMemory="3Gi")
    sizes = [volume["emptyDir"]["sizeLimit"] for volume in pod["spec"]["volumes"] if volume["name"] == "shm"]
    assert sizes == ["3Gi"]


def test_every_flag_that_baton_sets_is_reserved() -> None:
    """So that no argument of a tenant can stand beside one of Baton's and win."""
    full: Json = {**PVC, **OPTIONS, "kvTransfer__minBandwidth": "1GB/s", "model__quantization": "auto"}
    full |= {"prefill__tensorParallel": 2, "decode__tensorParallel": 2}
    for role in (Role.PREFILL, Role.DECODE):
        container = pod_of(role, **full)["spec"]["containers"][0]
        argv = [*container["command"], *container["args"]]
        flags = {argument.removeprefix("--").partition("=")[0] for argument in argv if argument.startswith("--")}
        assert flags <= set(RESERVED_ARGUMENTS)
        options = {option.removeprefix("--") for action in parser(role)._actions for option in action.option_strings}
        free = {"kernels", "pipeline-parallel"} | ({"landing-bytes"} if role is Role.DECODE else set())
        assert {option for option in options if not option.startswith("-")} - set(RESERVED_ARGUMENTS) == free


def test_a_pool_without_options_keeps_its_template() -> None:
    one, other = (worker_template(deployment(**PVC), role, PLATFORM) for role in (Role.PREFILL, Role.DECODE))
    moved = worker_template(deployment(**{**PVC, **OPTIONS}), Role.PREFILL, PLATFORM)
    assert moved.spec.revision == one.spec.revision
    assert worker_template(deployment(**{**PVC, **OPTIONS}), Role.DECODE, PLATFORM).spec.revision != other.spec.revision


def test_the_gateway_has_a_place_a_size_and_marks_of_its_own() -> None:
    toleration = {"key": "nvidia.com/gpu"}
    fields: Json = {
        "gateway__resources": {"cpu": "2", "memory": "1Gi"},
        "gateway__placement": {"nodeSelector": {"pool": "web"}, "tolerations": [toleration]},
        "gateway__priorityClassName": "high",
        "gateway__service": {"annotations": {"example.com/lb": "nlb"}},
    }
    pod = build_deployment("Deployment", "chat-gateway", **fields)["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"] == {
        "requests": {"cpu": "2", "memory": "1Gi"},
        "limits": {"memory": "1Gi"},
    }
    assert (pod["nodeSelector"], pod["priorityClassName"]) == ({"pool": "web"}, "high")
    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    assert build_deployment("Service", "chat-gateway", **fields)["metadata"]["annotations"] == {"example.com/lb": "nlb"}
    plain = build_deployment("Deployment", "chat-gateway")["spec"]["template"]["spec"]
    assert plain["containers"][0]["resources"]["limits"] == {"memory": "4Gi"}
    assert "nodeSelector" not in plain


def test_the_fetch_job_has_a_place_a_size_and_an_identity() -> None:
    fetch = {
        "resources": {"cpu": "1", "memory": "8Gi"},
        "placement": {"nodeSelector": {"disk": "fast"}},
        "serviceAccountAnnotations": {"iam.example.com/role": "reader"},
    }
    fields = {**HUB, "model__fetch": fetch}
    objects: Any = standing_objects(deployment(**fields), PLATFORM, Owner("u"), MASTERS)
    (job,) = (manifest for manifest in objects if manifest["kind"] == "Job")
    pod = job["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"] == {"memory": "8Gi"}
    assert pod["nodeSelector"] == {"disk": "fast"}
    marked = [manifest["metadata"]["name"] for manifest in objects
              if manifest["kind"] == "ServiceAccount" and "annotations" in manifest["metadata"]]  # fmt: skip
    assert marked == ["chat-fetch"], "no worker and no gateway gets an identity"


RESERVED = [
    "BATON_KEYS", "LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONSTARTUP", "HOME", "TMPDIR", "PATH",
    "KUBERNETES_SERVICE_HOST", "UCX_CONFIG_DIR", "UCX_GDB_COMMAND", "UCX_HANDLE_ERRORS", "UCX_ERROR_SIGNALS",
    "UCX_DEBUG_SIGNO", "UCX_LOG_FILE", "UCX_MODULES", "UCX_STATS_DEST", "UCX_STATS_TRIGGER", "UCX_VFS_ENABLE",
    "NIXL_PLUGIN_DIR", "NIXL_ETCD_ENDPOINTS", "IBV_DRIVERS", "RDMAV_DRIVERS", "NCCL_NET", "NCCL_NET_PLUGIN",
    "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN", "NCCL_ENV_PLUGIN", "NCCL_CONF_FILE", "NCCL_DEBUG_FILE",
    "NCCL_TOPO_FILE", "NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE", "NCCL_INSPECTOR_DUMP_DIR",
    "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "CUDA_CACHE_PATH", "CUDA_COREDUMP_FILE",
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "CUDA_HOME", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES",
    "TRITON_CACHE_MANAGER", "TRITON_PTXAS_PATH", "TRITON_KERNEL_OVERRIDE", "PTXAS_OPTIONS", "CC", "CXX", "CUDACXX",
    "PYTORCH_NVCC", "CUDAHOSTCXX", "CXXFLAGS", "NVCC_PREPEND_FLAGS", "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR", "TORCH_ADDR2LINE_BINARY", "TORCH_LOGS_OUT", "TORCH_TRACE", "PYTORCH_TUNABLEOP_FILENAME",
    "KINETO_CONFIG", "INTEL_LIBITTNOTIFY64", "INTEL_JIT_PROFILER64", "OMP_TOOL_LIBRARIES",
    "MKL_VERBOSE_OUTPUT_FILE", "GLIBC_TUNABLES", "MALLOC_TRACE", "JE_MALLOC_CONF", "GCONV_PATH", "LOCPATH",
    "NLSPATH", "TZDIR", "HOSTALIASES", "OPENSSL_CONF", "OPENSSL_MODULES", "SSL_CERT_FILE", "SSLKEYLOGFILE",
    "HF_HOME", "XDG_CACHE_HOME", "GRPC_XDS_BOOTSTRAP", "CUFILE_ENV_PATH_JSON", "BASH_ENV", "ENV", "IFS", "EDITOR",
    "PAGER",
]  # fmt: skip


@pytest.mark.parametrize("name", RESERVED)
def test_names_of_batons_own_and_names_that_load_code_are_refused_whatever_is_listed(name: str) -> None:
    with pytest.raises(ManifestError, match="reserved"):
        parse_object(manifest(decode__env=[{"name": name, "value": "x"}]))
    for entries in ((name,), ("*",), (f"{name.partition('_')[0]}_", f"{name[:-1]}_")):
        assert refusal(entries, name, "x") is not None


LISTED_WHOLE = [
    "OMP_WAIT_POLICY", "CUDA_MODULE_LOADING", "CUDA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF",
    "CUBLAS_WORKSPACE_CONFIG", "RUST_LOG", "UCX_LOG_LEVEL", "UCX_RC_MLX5_NUM_PATHS", "TOKENIZERS_PARALLELISM",
    "HTTPS_PROXY", "TRITON_CACHE_DIR", "TZ",
]  # fmt: skip


@pytest.mark.parametrize("name", LISTED_WHOLE)
def test_what_only_says_how_or_how_many_an_installation_may_list_by_its_whole_name(name: str) -> None:
    parse_object(manifest(decode__env=[{"name": name, "value": "x"}]))
    assert refusal((name,), name, "x") is None
    assert refusal((f"{name.partition('_')[0]}_",), name, "x") is not None, "the beginning of it opens nothing"


@pytest.mark.parametrize(
    "path",
    ["/etc/baton/keys", "/model", "/mnt", "/mnt/", "/mnt/..", "/mnt/../etc", "/mnt/a/../../run", "/tmp/x", "mnt/a"],
)
def test_nothing_is_mounted_over_anything_of_batons(path: str) -> None:
    with pytest.raises(ManifestError, match="mountPath"):
        parse_object(manifest(decode__volumes=[{"name": "a", "mountPath": path, "claimName": "a"}]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"decode__env": [{"name": "HTTPS_PROXY", "value": "x"}]}, "spec.decode.env[0].name"),
        ({"gateway__service": {"annotations": {"example.com/a": "b"}}}, "spec.gateway.service.annotations"),
        ({"gateway__priorityClassName": "system-cluster-critical"}, "spec.gateway.priorityClassName"),
        ({"gateway__placement": {"tolerations": [{"key": "infra"}]}}, "spec.gateway.placement.tolerations[0].key"),
        ({"model__fetch": {"placement": {"tolerations": [{"key": "infra"}]}}}, "spec.model.fetch.placement"),
        ({"model__fetch": {"serviceAccountAnnotations": {"eks.amazonaws.com/role-arn": "x"}}}, "spec.model.fetch"),
    ],
)
def test_what_the_installation_does_not_list_is_refused_by_its_field(fields: Json, message: str) -> None:
    problems = [str(problem) for problem in PodPolicy().refusals(deployment(**fields))]
    assert len(problems) == 1
    assert message in problems[0]
    listed = PodPolicy(
        env=("HTTPS_PROXY",), service_annotations=("example.com",), account_annotations=("eks.amazonaws.com",),
        tolerations=("infra",),
    )  # fmt: skip
    assert bool(list(listed.refusals(deployment(**fields)))) == ("system-" in str(fields))


def test_settings_of_the_transports_are_allowed_by_default() -> None:
    given = {"UCX_TLS": "rc,^cuda", "UCX_NET_DEVICES": "mlx5_0:1", "NCCL_SOCKET_IFNAME": "=eth0", "UCX_RNDV_THRESH": ""}
    env = [{"name": name, "value": value} for name, value in given.items()]
    for policy in (PodPolicy(), PodPolicy(env=("UCX_", "NCCL_")), PodPolicy(env=("*",))):
        assert list(policy.refusals(deployment(prefill__env=env))) == []


def test_the_default_is_a_list_of_names_and_a_beginning_opens_those_alone() -> None:
    assert not [name for name in SAFE_ENV if name.endswith("_") or name == "*" or is_reserved(name)]
    assert PodPolicy().env == SAFE_ENV
    for name in ("UCX_PROTO_ENABLE", "UCX_LOG_LEVEL", "UCX_NEXT", "NCCL_COMM_ID", "NCCL_RAS_ADDR"):
        assert refusal(SAFE_ENV, name, "x") is not None
        assert refusal(("UCX_", "NCCL_"), name, "x") is not None
        assert refusal((*SAFE_ENV, name), name, "x") is None
    assert idle_entries((*SAFE_ENV, "*", "UCX_", "UCX_LOG_LEVEL")) == ()
    assert idle_entries(("OTEL_", "UCX_GDB_COMMAND", "NIXL_")) == ("OTEL_", "UCX_GDB_COMMAND", "NIXL_")


@pytest.mark.parametrize(
    "value", ["/mnt/a", "file:/mnt/a", "@a", "%h", "a b", "a\n", "$(id)", "~", "a\\b", "'", "tcp;x=`id`"]
)
def test_a_value_that_looks_like_a_path_or_a_command_is_refused_for_names_of_the_default(value: str) -> None:
    (problem,) = PodPolicy().refusals(deployment(decode__env=[{"name": "UCX_TLS", "value": value}]))
    assert problem.path == "spec.decode.env[0].value"
    assert "UCX_TLS" in problem.message
