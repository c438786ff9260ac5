"""Reading LLMDeployments: what is accepted, and every refusal with its path, the value and what is allowed."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_control.errors import FieldProblem, ManifestError
from baton_control.spec.api import ScalingMode, TransportMode
from baton_control.spec.manifest import MAX_FILE_BYTES, parse_live, parse_manifest, parse_object, read_manifest
from baton_testing.kube.manifests import as_yaml, manifest, set_at

HEAD = as_yaml(manifest())


def problems_of(text: str) -> list[str]:
    with pytest.raises(ManifestError) as caught:
        parse_manifest(text, "file.yaml")
    return [str(problem) for problem in caught.value.problems]


def test_everything_but_the_model_has_a_default() -> None:
    spec = parse_object(manifest()).spec
    assert (spec.prefill.replicas.min, spec.prefill.replicas.max) == (1, 1)
    assert spec.decode.accelerator is None
    assert spec.kv_transfer.transport is TransportMode.AUTO
    assert spec.autoscaling.mode is ScalingMode.SLO
    assert (spec.rollout.max_surge, spec.rollout.max_unavailable) == (1, 0)
    assert spec.gateway.limits.max_request_duration == 600.0


@pytest.mark.parametrize(
    "endpoint",
    ["", "collector:4318", "grpc://c:4317", "http://", "http://c:0", "http://c:65536", "http://a@c", "http://c?k=v"],
)
def test_an_endpoint_of_traces_is_a_url_without_credentials(endpoint: str) -> None:
    [problem] = problems_of(as_yaml(manifest(telemetry={"tracing": {"endpoint": endpoint}})))
    assert "spec.telemetry.tracing.endpoint" in problem
    assert "http(s)://HOST[:PORT][/PATH] without credentials" in problem


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("1.5s", 1.5),
        ("2m", 120.0),
        ("1h", 3600.0),
        ("0.001s", 0.001),
        ("1m30s", 90.0),
        ("0h59m59s999ms", 3599.999),
    ],
)
def test_durations_become_seconds(text: str, seconds: float) -> None:
    assert parse_object(manifest(slo__ttft={"target": text})).spec.slo.ttft.target == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64Mi", 64 << 20),
        ("1Gi", 1 << 30),
        ("1048576", 1 << 20),
        (1 << 20, 1 << 20),
        ("1.5Gi", 3 << 29),
        ("8G", 8 * 10**9),
        ("2e6", 2_000_000),
        (".5Gi", 1 << 29),
    ],
)
def test_sizes_become_bytes(text: object, size: int) -> None:
    engine = parse_object(manifest(decode__engine={"kvCacheMemory": text})).spec.decode.engine
    assert engine.kv_cache_memory == size


NOT_ALLOWED: list[tuple[tuple[str, ...], object, str]] = [
    (("spec", "foo"), 1, "spec.foo: unknown field; known here: model, slo, prefill"),
    (("spec", "prefill", "securityContext"), {}, "spec.prefill.securityContext: unknown field; known here: replicas"),
    (
        ("spec", "model", "servedName"),
        "a; rm",
        "spec.model.servedName: 'a; rm' is not allowed: must be 1 to 128 letters",
    ),
    (("spec", "model", "servedName"), "--flag", "spec.model.servedName: '--flag' is not allowed"),
    (("spec", "model", "servedName"), "a\nb", "spec.model.servedName: 'a\\nb' is not allowed"),
    (("spec", "model", "servedName"), "x" * 129, "spec.model.servedName: "),
    (("spec", "model", "servedName"), "", "spec.model.servedName: '' is not allowed"),
    (("spec", "model", "servedName"), None, "spec.model.servedName: null is not allowed"),
    (("spec", "model", "toolFormat"), "xml", "spec.model.toolFormat: 'xml' is not allowed"),
    (("spec", "model", "aliases"), ["tiny"], "spec.model.aliases: not allowed: names must differ from each other"),
    (("spec", "model", "aliases"), ["a", "a"], "spec.model.aliases: not allowed: names must differ from each other"),
    (("spec", "model", "aliases"), ["a,b"], "spec.model.aliases[0]: 'a,b' is not allowed: must be 1 to 128 letters"),
    (("spec", "model", "aliases"), [f"a{n}" for n in range(17)], "must be a list of at most 16 entries"),
    (("spec", "model", "source"), "hf://org/name", "hf://ORG/NAME@COMMIT"),
    (("spec", "model", "source"), "pvc://claim/../etc", "no '..' in a path"),
    (("spec", "model", "source"), "file://a/../../b", "no '..' in a path"),
    (("spec", "model", "source"), "http://host/x", "spec.model.source: 'http://host/x' is not allowed"),
    (("spec", "model", "source"), "file://a\x00b", "spec.model.source: "),
    (("spec", "model", "maxContextTokens"), 15, "15 is not allowed: must be an integer from 16 to 1048576"),
    (("spec", "model", "maxContextTokens"), 2**31, "must be an integer from 16 to 1048576"),
    (("spec", "model", "maxContextTokens"), "512", "'512' is not allowed: must be an integer from 16"),
    (("spec", "model", "maxContextTokens"), 512.0, "512.0 is not allowed: must be an integer"),
    (("spec", "model", "maxContextTokens"), True, "true is not allowed: must be an integer"),
    (("spec", "model", "dtype"), "int3", "must be one of auto, float32, bfloat16, float16"),
    (("spec", "prefill", "engine", "offloadedLayers"), 8, "8 is not allowed: needs an accelerator"),
    (("spec", "prefill", "engine", "offloadedLayers"), 0, "must be an integer from 1 to 1024"),
    (("spec", "model", "kvCacheDtype"), "fp8", "fp8 is not allowed: needs an accelerator in both pools"),
    (
        ("spec", "model", "quantization"),
        "awq",
        "spec.model.quantization: 'awq' is not allowed: must be one of auto, none",
    ),
    (
        ("spec", "prefill", "replicas", "min"),
        -1,
        "spec.prefill.replicas.min: -1 is not allowed: must be an integer from 0",
    ),
    (("spec", "prefill", "replicas", "max"), 10**9, "must be an integer from 1 to 1024"),
    (("spec", "prefill", "replicas"), {"min": 3, "max": 2}, "must be at most replicas.max, which is 2"),
    (("spec", "prefill", "replicas"), [1, 2], "a list of 2 is not allowed: must be a mapping with min, max"),
    *(
        (("spec", "prefill", "tensorParallel"), degree, f"{shown} is not allowed: must be 1, 2, 4 or 8")
        for degree, shown in ((0, "0"), (3, "3"), (16, "16"), ("2", "'2'"), (2.0, "2.0"), (True, "true"))
    ),
    (("spec", "prefill", "accelerator"), {"resource": "gpu"}, "must be an extended resource such as nvidia.com/gpu"),
    (("spec", "prefill", "accelerator"), {}, "accelerator.resource: must be given, or claim, and not both"),
    (("spec", "prefill", "accelerator"), {"claim": "gpu"}, "accelerator.claim: gpu is not allowed: must be a name in"),
    (
        ("spec", "prefill", "accelerator"),
        {"resource": "nvidia.com/gpu", "with": {"rdma": 1}},
        "must be named by an extended resource such as nvidia.com/gpu",
    ),
    (
        ("spec", "prefill", "accelerator"),
        {"resource": "nvidia.com/gpu", "with": {"rdma/ib": 65}},
        "accelerator.with.rdma/ib: 65 is not allowed: must be an integer from 1 to 64",
    ),
    (("spec", "prefill", "accelerator"), {"resource": "a.b/c", "with": {"a.b/c": 1}}, "must differ from resource"),
    (("spec", "prefill", "placement"), {"nodeSelector": {"-a": "b"}}, "must be named by a Kubernetes key"),
    (("spec", "prefill", "placement"), {"tolerations": [{}]}, "spec.prefill.placement.tolerations[0].key: is missing"),
    (("spec", "decode", "replicas", "min"), 0, "must be 0 in both pools or in neither"),
    (
        ("spec", "decode", "engine"),
        {"kvCacheMemory": "3Ki"},
        "must be a size such as 512Mi, 1.5Gi or 8G from 1Mi to 16Ti",
    ),
    (("spec", "decode", "resources"), {"cpu": 0.5}, 'must be CPUs such as 4, 500m or "0.5"'),
    (("spec", "decode", "resources"), {"cpu": 0}, "0 is not allowed: must be CPUs"),
    (("spec", "decode", "resources"), {"cpu": True}, "true is not allowed: must be CPUs"),
    (("spec", "decode", "resources"), {"cpu": "4 cores"}, "'4 cores' is not allowed: must be CPUs"),
    (("spec", "decode", "resources"), {"memory": "64GB"}, "'64GB' is not allowed: must be a size such as 512Mi"),
    (("spec", "decode", "resources"), {"memory": "400m"}, "'400m' is not allowed: must be a size such as 512Mi"),
    (("spec", "decode", "resources"), {"memory": "9E"}, "'9E' is not allowed: must be a size"),
    (("spec", "decode", "resources"), {"memory": -1}, "-1 is not allowed: must be a size"),
    (
        ("spec", "decode", "resources"),
        {"cpu": 4, "requests": {"cpu": 4}},
        "spec.decode.resources.cpu: 4 is not allowed: must be absent while requests.cpu is given",
    ),
    (
        ("spec", "gateway", "resources"),
        {"memory": "1Gi", "limits": {"memory": "1Gi"}},
        "spec.gateway.resources.memory: 1Gi is not allowed: must be absent while limits.memory is given",
    ),
    (
        ("spec", "model", "fetch"),
        {"resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}},
        "spec.model.fetch.resources.requests.memory: 2Gi is not allowed: must be at most limits.memory, which is 1Gi",
    ),
    (
        ("spec", "decode", "resources"),
        {"cpu": 3, "limits": {"cpu": 2}},
        "spec.decode.resources.cpu: 3 is not allowed: must be at most limits.cpu, which is 2",
    ),
    (("spec", "slo", "ttft"), {"target": 500}, "500 is not allowed: must be a duration such as 500ms"),
    (("spec", "slo", "ttft"), {"target": "2h"}, "'2h' is not allowed: must be a duration"),
    (("spec", "slo", "ttft"), {"target": "1e3ms"}, "must be a duration"),
    (("spec", "slo", "ttft"), {"target": "1m 30s"}, "must be a duration"),
    (("spec", "slo", "ttft"), {"target": "1m30"}, "must be a duration"),
    (("spec", "slo", "tpot"), {"target": "1s", "percentile": 100}, "must be a number from 50 to 99.9"),
    (("spec", "slo", "tpot"), {"target": "1s", "percentile": float("nan")}, "must be a number from 50 to 99.9"),
    (("spec", "autoscaling", "mode"), False, "quote it: YAML reads a bare On, Off"),
    (("spec", "autoscaling", "scaleToZeroAfter"), "5m", "needs replicas.min 0 in both pools"),
    (("spec", "autoscaling", "scaleToZero"), {"costOfMiss": -1}, "must be a number from 0 to 100000"),
    (("spec", "autoscaling", "scaleToZero"), {}, "spec.autoscaling.scaleToZero.costOfMiss: is missing"),
    (("spec", "autoscaling", "schedules"), [{"start": "8:00", "end": "18:00"}], "must be a time of day such as 08:30"),
    (("spec", "autoscaling", "schedules"), [{"start": 480, "end": "18:00"}], "must be a time of day such as 08:30"),
    (("spec", "autoscaling", "schedules"), [{"start": "08:00", "end": "08:00", "decode": 1}], "must differ from start"),
    (("spec", "autoscaling", "schedules"), [{"start": "08:00", "end": "09:00"}], "names prefill, decode or both"),
    (
        ("spec", "autoscaling", "schedules"),
        [{"start": "08:00", "end": "09:00", "days": ["Sonntag"], "decode": 1}],
        "must be one of Mon, Tue",
    ),
    (
        ("spec", "autoscaling", "schedules"),
        [{"start": "08:00", "end": "09:00", "decode": 9}],
        "spec.autoscaling.schedules[0].decode: 9 is not allowed: must be at most decode.replicas.max, which is",
    ),
    (("spec", "kvTransfer"), {"transport": "RDMA"}, "spec.kvTransfer.transport: 'RDMA' is not allowed"),
    (("spec", "rollout"), {"maxSurge": 0}, "must be at least 1 while maxUnavailable is 0"),
    (("spec", "rollout"), {"maxSurge": "0%", "maxUnavailable": "0%"}, "0% is not allowed: must be at least 1 while"),
    (("spec", "rollout"), {"maxSurge": "101%"}, "'101%' is not allowed: must be an integer from 0 to 64, or a perc"),
    (("spec", "rollout"), {"maxSurge": 65}, "65 is not allowed: must be an integer from 0 to 64, or a percentage"),
    (("spec", "rollout"), {"maxSurge": True}, "true is not allowed: must be an integer from 0 to 64"),
    (
        ("spec", "gateway"),
        {"service": {"loadBalancerSourceRanges": ["10.0.0.0"]}},
        "loadBalancerSourceRanges[0]: '10.0.0.0' is not allowed: must be a network such as 192.0.2.0/24",
    ),
    (("spec", "gateway", "route"), {"parentRefs": [{"sectionName": "https"}]}, "parentRefs[0].name: is missing"),
    (("spec", "imagePullSecrets"), [{"name": "a"}], "a mapping with name goes into pullSecrets"),
    (("spec", "pullSecrets"), ["a"], "'a' is not allowed: must be a mapping with name"),
    (("spec", "gateway", "tls"), {"secretName": "other/name"}, "must be an object name in the same namespace"),
    (
        ("spec", "gateway", "service"),
        {"type": "LoadBalancer"},
        "spec.gateway.service.type: LoadBalancer is not allowed",
    ),
    (
        ("spec", "gateway", "service"),
        {"type": "NodePort"},
        "needs gateway.apiKeys, gateway.tenants, or",
    ),
    (("spec", "gateway", "allowedOrigins"), ["https://a.example/x"], "without a path, as browsers send it"),
    (("spec", "gateway", "route"), {"parent": "edge"}, "spec.gateway.route: not allowed: needs gateway.apiKeys"),
    (
        ("spec", "gateway"),
        {"openAccess": True, "apiKeys": {"secretName": "a"}},
        "spec.gateway.openAccess: true is not allowed: must be false while apiKeys is given",
    ),
    (("spec", "gateway", "limits"), {"maxRequestDuration": "25h"}, "from 1s to 24h"),
    (("spec", "imagePullSecrets"), ["a"] * 9, "a list of 9 is not allowed: must be a list of at most 8 entries"),
    (("spec", "podMetadata"), {"labels": {"baton.dev/role": "x"}}, "baton.dev is reserved"),
    (("spec", "podMetadata"), {"labels": {"app.kubernetes.io/name": "x"}}, "app.kubernetes.io is reserved"),
    (("spec", "podMetadata"), {"annotations": {"x.baton.dev/role": "x"}}, "x.baton.dev is reserved"),
    (("metadata", "name"), "Chat", "metadata.name: 'Chat' is not allowed: must be 1 to 36 lower-case"),
    (("metadata", "name"), "c" * 37, "must be 1 to 36 lower-case"),
    (("metadata", "name"), "../up", "must be 1 to 36 lower-case"),
    (("metadata", "namespace"), "a.b", "metadata.namespace: 'a.b' is not allowed"),
    (("apiVersion",), "v1", "apiVersion: 'v1' is not allowed: must be 'baton.dev/v1alpha1'"),
    (("kind",), "Pod", "kind: 'Pod' is not allowed: must be 'LLMDeployment'"),
]


@pytest.mark.parametrize(("path", "value", "message"), NOT_ALLOWED)
def test_a_refused_field_is_named_with_its_value_and_what_is_allowed(
    path: tuple[str, ...], value: object, message: str
) -> None:
    raw = manifest()
    set_at(raw, path, value)
    with pytest.raises(ManifestError) as caught:
        parse_object(raw)
    assert any(message in str(problem) for problem in caught.value.problems), str(caught.value)
    assert all(len(str(problem)) < 400 and "\n" not in str(problem) for problem in caught.value.problems)


def test_all_problems_are_reported_at_once() -> None:
    raw = manifest(foo=1, slo__ttft={"target": 5}, model__maxContextTokens=1)
    with pytest.raises(ManifestError) as caught:
        parse_object(raw)
    assert {problem.path for problem in caught.value.problems} == {
        "spec.foo",
        "spec.slo.ttft.target",
        "spec.model.maxContextTokens",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# nothing", "file.yaml: is empty: must hold one LLMDeployment"),
        (f"{HEAD}\n---\n{HEAD}", "must hold exactly one LLMDeployment, has more"),
        (f"{HEAD}\n" + "--- {}\n" * 40_000, "must hold exactly one LLMDeployment, has more"),
        ("---\n" * 40_000, "must hold exactly one LLMDeployment, has more"),
        ("x: !!timestamp y", "tags such as 'tag:yaml.org,2002:timestamp' are not allowed (line 1, column 4)"),
        ("x: !!bool y", "tags such as 'tag:yaml.org,2002:bool' are not allowed"),
        ("x: !!binary y", "tags such as"),
        (f"spec: {{model: 0x{'f' * 200_000}}}", "spec.model: an integer of 800000 bits is not allowed"),
        (f"spec: {{model: 1{':59' * 3_000}}}", "bits is not allowed"),
        (f"spec: {{model: {'9' * 200_000}}}", "not usable YAML"),
        ("a: 1\na: 2", "key 'a' is given twice (line 2, column 1)"),
        ("a: &x [1]\nb: *x", "aliases are not allowed (line 2, column 4)"),
        ("a: " + "[" * 40 + "]" * 40, "nested deeper than 24 levels"),
        ("? [1]\n: 2", "keys must be plain text"),
        ("1: 2", "keys must be plain text"),
        ("x: !!python/object/apply:os.system [ls]", "tags such as 'tag:yaml.org,2002:python/object/apply:os.system'"),
        ("a: [1", "not usable YAML"),
        ("a: \x01", "not usable YAML"),
        ("just text", "'just text' is not allowed: must be a mapping with apiVersion"),
        ("- 1", "must be a mapping with apiVersion, kind, metadata, spec"),
        ("a: 2020-99-99", "not usable YAML"),
    ],
)
def test_text_that_is_no_plain_yaml_manifest_is_refused(text: str, message: str) -> None:
    assert any(message in problem for problem in problems_of(text)), problems_of(text)


def test_a_file_that_cannot_be_read_or_is_too_large_is_named(tmp_path: Path) -> None:
    missing, large, binary = tmp_path / "no.yaml", tmp_path / "large.yaml", tmp_path / "binary.yaml"
    large.write_text("#" * (MAX_FILE_BYTES + 1))
    binary.write_bytes(b"a: \xff")
    for path, message in ((missing, "cannot be read"), (large, "at most 262144 bytes"), (binary, "byte 3 is not")):
        with pytest.raises(ManifestError, match=message) as caught:
            read_manifest(path)
        assert caught.value.problems[0].path == str(path)


def test_a_live_object_keeps_working_with_fields_of_another_version() -> None:
    raw = manifest(prefill__placement={"tolerations": [{"key": "a", "newer": 1}]}, future={"a": 1})
    set_at(raw, ("metadata", "uid"), "1234")
    set_at(raw, ("status",), {"any": "thing"})
    deployment, unknown = parse_live(raw)
    assert deployment.spec.prefill.placement.tolerations[0].key == "a"
    assert set(unknown) == {"spec.future", "spec.prefill.placement.tolerations[0].newer"}


def test_a_live_object_with_a_wrong_value_is_refused_by_path() -> None:
    with pytest.raises(ManifestError, match=r"spec\.prefill\.replicas\.min"):
        parse_live(manifest(future=1, prefill__replicas={"min": "1"}))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
PLACES = st.sampled_from([path for path, _, _ in NOT_ALLOWED] + [("spec",), ("metadata",), ("spec", "model")])


@given(PLACES, JSON_VALUES)
def test_no_value_at_any_place_is_anything_but_accepted_or_refused_with_its_path(
    path: tuple[str, ...], value: object
) -> None:
    raw = manifest()
    set_at(raw, path, value)
    messages = refusals(raw)
    assert messages is None or (messages and all("\n" not in message for message in messages))


def refusals(raw: object) -> list[str] | None:
    """The problems of a manifest, None when it is accepted; any other exception passes through."""
    try:
        parse_object(raw)
    except ManifestError as error:
        return [str(problem) for problem in error.problems]
    return None


def test_a_file_may_begin_and_end_with_a_separator() -> None:
    assert parse_manifest(f"---\n{HEAD}\n---\n# nothing follows\n").metadata.name == "chat"


def test_any_change_of_a_few_characters_is_read_or_refused() -> None:
    draw = random.Random(11)
    for _ in range(1_500):
        text = list(HEAD)
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(text))
            text[at : at + draw.randint(0, 3)] = draw.choice(WORDS)
        problems: tuple[FieldProblem, ...] = ()
        try:
            parse_manifest("".join(text))
        except ManifestError as error:
            problems = error.problems
        assert all("\n" not in str(problem) and len(str(problem)) < 400 for problem in problems)


WORDS = (
    "!!timestamp ", "!!int ", "!!float ", "!!set ", "!!omap ", "!!bool ", "<<", "=", "0x", "1:2:3", "2001-13-99", "&a ",
    "*a", "---\n", "...\n", "[", "{", "}", "]", ",", ":", "? ", "- ", "|", ">", "'", '"', "#", "%YAML 9.9\n", "\0",
    "\u2028", "\ud800", ".nan", "1e999", "-0", "~", "!", "@", "`", "\\", "\ufeff", "yes", "9" * 5_000,
)  # fmt: skip


@pytest.mark.parametrize(
    ("digits", "message"),
    [("0x" + "f" * 200_000, "an integer of 800000 bits is not allowed"), ("9" * 200_000, "4300 digits")],
)
def test_a_number_of_a_page_is_refused_in_a_line(digits: str, message: str) -> None:
    text, count = re.subn(r"\"maxContextTokens\": \d+", f"maxContextTokens: {digits}", HEAD)
    assert count == 1
    (problem,) = problems_of(text)
    assert message in problem
    assert len(problem) < 400
