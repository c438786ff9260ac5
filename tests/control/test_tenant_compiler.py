"""Compiling LLMTenants: refusals by field, generations that never go back, and edits that move one shard."""

from __future__ import annotations

from typing import Any

import pytest

from baton_control.errors import ManifestError
from baton_control.spec.manifest import parse_manifest, parse_tenant
from baton_control.tenant_compiler import CompiledTenants, TenantSource, compile_tenants
from baton_wire.tenant_table import MAX_SHARD_BYTES, NUM_SHARDS, decode_shard, encode_shard, shard_of

DIGEST_A, DIGEST_B = "a" * 64, "b" * 64


def raw(name: str, namespace: str = "llm", **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "baton.dev/v1alpha1", "kind": "LLMTenant", "metadata": metadata, "spec": spec}


def source(name: str, created: str = "2026-01-01T00:00:00Z", namespace: str = "llm", **spec: Any) -> TenantSource:
    return TenantSource(parse_tenant(raw(name, namespace, **spec)), created)


def compiled(*sources: TenantSource, before: CompiledTenants | None = None, now_s: float = 1_000.0) -> CompiledTenants:
    return compile_tenants("llm", sources, {} if before is None else before.shards, now_s)


def test_of_two_tenants_with_one_key_the_older_one_keeps_it() -> None:
    young = source("a", "2026-02-01T00:00:00Z", apiKeys=[{"sha256": DIGEST_B}, {"sha256": DIGEST_A}])
    old = source("z", apiKeys=[{"sha256": DIGEST_A}])
    outcome = compiled(young, old)
    assert {name: str(problem) for name, problem in outcome.problems.items()} == {
        "a": "spec.apiKeys[1].sha256: not allowed: LLMTenant z has this key"
    }
    assert [row.name for shard in outcome.shards.values() for row in shard.tenants] == ["z"]
    assert DIGEST_A not in str(outcome.problems), "no key is repeated"


def test_a_tenant_of_another_namespace_is_refused() -> None:
    outcome = compiled(source("a", namespace="other"), source("b"))
    assert outcome.problems["a"].path == "metadata.namespace"
    assert [row.name for shard in outcome.shards.values() for row in shard.tenants] == ["b"]


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"apiKeys": [{"sha256": "sk-in-clear-text"}]}, "spec.apiKeys[0].sha256"),
        ({"apiKeys": [{"key": "sk-in-clear-text"}]}, "spec.apiKeys[0].sha256"),
        ({"apiKeys": [{"sha256": "A" * 64}]}, "spec.apiKeys[0].sha256"),
        ({"apiKeys": [{"sha256": DIGEST_A}, {"sha256": DIGEST_A}]}, "spec.apiKeys"),
        ({"apiKeys": [{"sha256": DIGEST_A, "expires": "2026-02-30T00:00:00Z"}]}, "spec.apiKeys[0].expires"),
        ({"apiKeys": [{"sha256": DIGEST_A, "expires": "tomorrow"}]}, "spec.apiKeys[0].expires"),
        ({"apiKeys": [{"sha256": f"{number:064x}"} for number in range(9)]}, "spec.apiKeys"),
        ({"weight": 0}, "spec.weight"),
        ({"weight": -3}, "spec.weight"),
        ({"weight": 1.5}, "spec.weight"),
        ({"limits": {"requestsPerMinute": -1}}, "spec.limits.requestsPerMinute"),
        ({"limits": {"requestsPerMinute": 0}}, "spec.limits.requestsPerMinute"),
        ({"limits": {"inputTokensPerMinute": 10**12}}, "spec.limits.inputTokensPerMinute"),
        ({"limits": {"outputTokensPerMinute": "many"}}, "spec.limits.outputTokensPerMinute"),
        ({"limits": {"maxConcurrent": 0}}, "spec.limits.maxConcurrent"),
        ({"limits": {"maxContextTokens": 1 << 30}}, "spec.limits.maxContextTokens"),
        ({"limits": {"tokensPerMinute": 5}}, "spec.limits.tokensPerMinute"),
        ({"models": ["m", "m"]}, "spec.models"),
        ({"promptCache": "Everybody"}, "spec.promptCache"),
    ],
)
def test_bad_fields_are_refused_by_name(spec: dict[str, Any], path: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse_tenant(raw("a", **spec))
    assert path in [problem.path for problem in caught.value.problems]


def test_what_did_not_change_keeps_its_generation_and_a_clock_that_steps_back_takes_none_back() -> None:
    first = compiled(source("a"), source("b"), now_s=5_000.0)
    same = compiled(source("b"), source("a"), before=first, now_s=9_000.0)
    assert same.shards == first.shards
    edited = compiled(source("a", weight=2), source("b"), before=first, now_s=1_400.0)
    changed = [place for place in edited.shards if edited.shards[place] != first.shards[place]]
    assert changed == [shard_of("a")]
    assert edited.shards[changed[0]].generation == first.shards[changed[0]].generation + 1
    gone = compiled(source("b"), before=edited)
    assert gone.shards[shard_of("a")].tenants == (), "an empty shard is not an absent one"


def test_ten_thousand_tenants_edited_at_once_fit_into_bounded_shards() -> None:
    limits = {"requestsPerMinute": 60_000, "inputTokensPerMinute": 10_000_000, "outputTokensPerMinute": 1_000_000}
    sources = [
        source(f"team-{number}", apiKeys=[{"sha256": f"{number:064x}"}], limits=limits, models=["llama-3.1-8b"])
        for number in range(10_000)
    ]
    outcome = compiled(*sources)
    assert not outcome.problems
    contents = [encode_shard(shard) for shard in outcome.shards.values()]
    assert len(contents) == NUM_SHARDS
    assert max(map(len, contents)) <= MAX_SHARD_BYTES
    assert sum(len(decode_shard(content).tenants) for content in contents) == 10_000


def test_tenants_that_do_not_fit_are_refused_and_the_others_stay() -> None:
    models = [f"{'m' * 120}-{number}" for number in range(60)]
    sources = [source(f"t{number:04}", models=models) for number in range(1_500)]
    outcome = compiled(*sources)
    kept = sum(len(shard.tenants) for shard in outcome.shards.values())
    assert kept + len(outcome.problems) == 1_500
    assert outcome.problems
    assert {problem.path for problem in outcome.problems.values()} == {"metadata.name"}
    assert all(len(encode_shard(shard)) <= MAX_SHARD_BYTES for shard in outcome.shards.values())


def test_a_file_holds_one_deployment_and_any_tenants() -> None:
    tenants = "".join(
        f"---\napiVersion: baton.dev/v1alpha1\nkind: LLMTenant\nmetadata: {{name: t{number}}}\nspec: {{}}\n"
        for number in range(20)
    )
    deployment = (
        "---\napiVersion: baton.dev/v1alpha1\nkind: LLMDeployment\nmetadata: {name: chat}\n"
        'spec: {model: {source: "pvc://m/c", servedName: chat, maxContextTokens: 4096}, gateway: {tenants: true}}\n'
    )
    assert parse_manifest(tenants + deployment).spec.gateway.tenants
    with pytest.raises(ManifestError, match="exactly one LLMDeployment"):
        parse_manifest(deployment + tenants + deployment)
    with pytest.raises(ManifestError, match="must hold one LLMDeployment"):
        parse_manifest(tenants)


@pytest.mark.parametrize(
    "keys",
    [
        [{"sha256": "sk-in-clear-text"}],
        [{"key": "sk-in-clear-text"}],
        ["sk-in-clear-text"],
        "sk-in-clear-text",
        {"team": "sk-in-clear-text"},
        [{"sha256": DIGEST_A, "expires": "sk-in-clear-text"}],
        [["sk-in-clear-text"]],
    ],
    ids=str,
)
def test_a_key_in_clear_text_is_refused_and_never_repeated(keys: object) -> None:
    with pytest.raises(ManifestError) as caught:
        parse_tenant(raw("a", apiKeys=keys))
    assert "spec.apiKeys" in str(caught.value)
    assert "clear-text" not in str(caught.value)
