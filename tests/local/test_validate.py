"""`baton validate`: every fault of every manifest at once, without a cluster."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from baton_control.spec.foreign_fields import ELSEWHERE
from baton_local.__main__ import main
from baton_local.commands.validate import check_text, read_policy, run_validate
from baton_testing.engine.tiny_llama import FOLDER

GOOD = """
apiVersion: baton.dev/v1alpha1
kind: LLMDeployment
metadata: {name: chat}
spec: {model: {source: "pvc://models/chat", servedName: chat, maxContextTokens: 4096}}
"""
NAMESPACE = "apiVersion: v1\nkind: Namespace\nmetadata: {name: team}\n"
CHART = Path(__file__).parents[2] / "charts" / "baton" / "values.yaml"


def with_spec(text: str) -> str:
    return GOOD.replace("maxContextTokens: 4096}}", f"maxContextTokens: 4096}}, {text}}}")


def run(tmp_path: Path, *texts: str, flags: tuple[str, ...] = ()) -> int:
    files = []
    for number, text in enumerate(texts):
        files.append(str(tmp_path / f"{number}.yaml"))
        Path(files[-1]).write_text(text)
    return main(["validate", *files, *flags])


def test_valid_manifests_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, GOOD, f"{NAMESPACE}---{GOOD}") == 0
    ended = capsys.readouterr()
    assert ended.out == "2 LLMDeployments valid\n"
    assert "note: " in ended.err
    assert "document 1: 'Namespace' is not checked" in ended.err


def test_all_faults_of_all_files_are_said_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = with_spec("prefill: {replica: 3}, slo: {ttft: {target: 500}}")
    assert run(tmp_path, wrong, f"{GOOD}---{with_spec('decode: {replicas: 2}')}", "a: [") == 1
    lines = capsys.readouterr().err
    assert "0.yaml: spec.prefill.replica: unknown field: write replicas: {min, max}" in lines
    assert "0.yaml: spec.slo.ttft.target: 500 is not allowed: must be a duration" in lines
    assert "1.yaml, document 2: spec.decode.replicas" in lines
    assert "2.yaml: not usable YAML" in lines
    assert "baton: 4 faults" in lines


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("decode: {minReplicas: 1}", "unknown field: write replicas.min"),
        ("max_model_len: 4096", "unknown field: vLLM's max_model_len is spec.model.maxContextTokens here"),
        ("services: {}", "unknown field: write prefill, decode and gateway"),
        ("decode: {envs: []}", "unknown field: Dynamo's envs are env of spec.prefill and spec.decode here"),
    ],
)
def test_fields_of_other_systems_are_named_in_our_words(spec: str, words: str) -> None:
    assert words in check_text(with_spec(spec), "x.yaml", None).problems[0]


def test_every_foreign_field_is_refused_where_it_is_written() -> None:
    """A name that becomes a field of ours has to leave the table."""
    for name in ELSEWHERE:
        for spec in (f"{name}: 1", f"prefill: {{{name}: 1}}"):
            problems = check_text(with_spec(spec), "x.yaml", None).problems
            reported = [problem for problem in problems if f"{name}: unknown field: " in problem]
            assert reported, (name, spec)
            assert "known here" not in reported[0]


def test_objects_of_other_systems_are_named_and_are_no_fault(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kserve = "apiVersion: serving.kserve.io/v1alpha1\nkind: LLMInferenceService\nmetadata: {name: x}\n"
    assert run(tmp_path, kserve) == 1, "nothing was checked"
    ended = capsys.readouterr().err
    assert "KServe's LLMInferenceService is not checked: docs/api.md" in ended
    assert "no LLMDeployment in" in ended


def test_a_wrong_version_of_our_own_object_is_a_fault_and_not_a_note() -> None:
    checked = check_text(GOOD.replace("v1alpha1", "v9"), "x.yaml", None)
    assert "apiVersion" in checked.problems[0]
    assert not checked.notes


def test_a_policy_refuses_what_the_installation_does_not_allow(tmp_path: Path) -> None:
    manifest = with_spec("prefill: {priorityClassName: high}")
    assert run(tmp_path, manifest) == 0, "without a policy it is not checked"
    assert run(tmp_path, manifest, flags=("--pod-policy", str(CHART))) == 1
    allowed = read_policy("priorityClasses: [high]", "own.yaml")
    assert check_text(manifest, "x.yaml", allowed).problems == ()


def test_a_relative_path_of_a_model_that_leads_nowhere_is_a_fault_with_the_one_that_was_meant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found: `baton validate` passed file://tiny-lama, and `baton up -f` refused it."""
    (tmp_path / "tiny-llama").mkdir()
    local = GOOD.replace("pvc://models/chat", "file://tiny-lama")
    assert run(tmp_path, local) == 1
    problem = capsys.readouterr().err
    assert "spec.model.source: file://tiny-lama: " in problem
    assert "tiny-lama does not exist: did you mean tiny-llama?" in problem
    assert run(tmp_path, GOOD.replace("pvc://models/chat", "file://tiny-llama")) == 0
    assert run(tmp_path, GOOD.replace("pvc://models/chat", "file:///models/chat")) == 0, "one of a cluster's nodes"


def test_values_without_a_pod_policy_have_that_of_the_chart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Found: the help offers the chart's values, and an installation's own file, which sets images alone, was refused
    for an unknown field."""
    (tmp_path / "values.yaml").write_text("images: {operator: x}\nreplicas: 2\n")
    flags = ("--pod-policy", str(tmp_path / "values.yaml"))
    assert run(tmp_path, GOOD, flags=flags) == 0
    assert "values.yaml has no podPolicy: the chart's own is checked" in capsys.readouterr().err
    assert run(tmp_path, with_spec("prefill: {priorityClassName: high}"), flags=flags) == 1


def test_tenants_next_to_a_deployment_that_lets_none_in_are_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tenant = "apiVersion: baton.dev/v1alpha1\nkind: LLMTenant\nmetadata: {name: web}\n"
    tenant += f'spec: {{apiKeys: [{{sha256: "{"a" * 64}"}}]}}\n'
    assert run(tmp_path, f"{GOOD}---\n{tenant}") == 0
    assert "(web): no LLMDeployment of that namespace in these files lets tenants in" in capsys.readouterr().err
    assert run(tmp_path, tenant) == 0
    assert "lets tenants in" not in capsys.readouterr().err, "it may be in another file"


@pytest.mark.parametrize("text", ["podPolicy: {labls: []}", "- a", "", "podPolicy: {labels: ['! x']}"])
def test_a_policy_that_is_none_is_refused_by_the_name_of_its_file(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "policy.yaml").write_text(text)
    assert run(tmp_path, GOOD, flags=("--pod-policy", str(tmp_path / "policy.yaml"))) == 2
    assert "--pod-policy" in capsys.readouterr().err


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(GOOD.encode())))
    assert main(["validate", "-"]) == 0
    assert capsys.readouterr().out == "1 LLMDeployment valid\n"


def test_a_file_that_is_not_there_is_a_fault_and_the_others_are_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "good.yaml").write_text(GOOD)
    assert main(["validate", str(tmp_path / "none.yaml"), str(tmp_path / "good.yaml")]) == 1
    assert "none.yaml: cannot be read" in capsys.readouterr().err


def test_a_degree_is_checked_against_a_model_on_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    degrees = "prefill: {tensorParallel: 2}, decode: {tensorParallel: 8}"
    local = with_spec(degrees).replace("pvc://models/chat", f"file://{FOLDER}")
    assert run(tmp_path, local) == 1
    errors = capsys.readouterr().err
    assert "spec.decode.tensorParallel: 8 " in errors
    assert "; allowed: 1, 2, 4\n" in errors
    assert "spec.prefill" not in errors
    shape = f"random://{FOLDER}/config.json"
    assert run(tmp_path, with_spec(degrees).replace("pvc://models/chat", shape)) == 1
    assert run(tmp_path, with_spec(degrees)) == 0, "the model in the claim is not known here"
    assert run(tmp_path, local.replace("tensorParallel: 8", "tensorParallel: 1")) == 0


def tenant_text(name: str, digest: str = "", namespace: str = "default", **limits: int) -> str:
    keys = f"[{{sha256: {digest}}}]" if digest else "[]"
    return (
        f"apiVersion: baton.dev/v1alpha1\nkind: LLMTenant\nmetadata: {{name: {name}, namespace: {namespace}}}\n"
        f"spec: {{apiKeys: {keys}, limits: {json.dumps(limits)}}}\n"
    )


def test_tenants_that_clash_are_refused_by_field_over_all_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text(tenant_text("old", "a" * 64, tokensPerMonth=5))
    second.write_text("---\n".join((tenant_text("young", "a" * 64), tenant_text("own", "b" * 64))))
    assert run_validate([str(first), str(second)], None) == 1
    shown = capsys.readouterr().err
    assert f"{second}, document 1: spec.apiKeys[0].sha256: not allowed: LLMTenant old has this key" in shown
    assert "aaaa" not in shown
    second.write_text(tenant_text("old", "a" * 64))
    assert run_validate([str(first), str(second)], None) == 0, "files of two sites may have the same tenant"
    second.write_text("---\n".join((tenant_text("twice"), tenant_text("twice"))))
    assert run_validate([str(second)], None) == 1
    assert "another LLMTenant has this name" in capsys.readouterr().err


def test_a_tenant_of_a_namespace_without_gateways_for_tenants_gets_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.yaml"
    deployment = with_spec("gateway: {tenants: true}")
    file.write_text(f"{deployment}\n---\n{tenant_text('here')}---\n{tenant_text('there', namespace='team-b')}")
    assert run_validate([str(file)], None) == 0
    notes = capsys.readouterr().err
    assert "LLMTenants of namespace team-b (there)" in notes
    assert "(here)" not in notes
