"""Options of `baton up` that override the manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from baton_control.spec.api import DeploymentSpec
from baton_control.spec.gateway_fields import OversizedMaxTokens, UnknownFieldsPolicy
from baton_local.__main__ import main
from baton_local.commands import up
from baton_local.fetching.default_deployment import DefaultOptions, as_yaml, default_deployment
from baton_testing.kube.manifests import deployment

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "tiny.yaml")


def asked_spec(monkeypatch: pytest.MonkeyPatch, *flags: str) -> DeploymentSpec:
    """The spec of a deployment once the flags have overridden it."""
    seen: list[up.UpOptions] = []

    def run(options: up.UpOptions) -> int:
        seen.append(options)
        return 0

    monkeypatch.setattr(up, "run_up", run)
    assert main(["up", "-f", EXAMPLE, *flags]) == 0
    limits = {"maxQueued": 9}
    return up.apply_options(deployment(gateway__limits=limits), seen[0]).spec


def asked(monkeypatch: pytest.MonkeyPatch, *flags: str) -> tuple[int, UnknownFieldsPolicy, bool]:
    """Gateway processes, what becomes of unknown fields, and whether the model's sampling counts."""
    spec = asked_spec(monkeypatch, *flags)
    return spec.gateway.processes, spec.gateway.unknown_fields, spec.model.generation_defaults


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), (1, UnknownFieldsPolicy.REFUSE, True)),
        (("--ignore-unknown-fields",), (1, UnknownFieldsPolicy.IGNORE, True)),
        (("--processes=3",), (3, UnknownFieldsPolicy.REFUSE, True)),
        (("--processes=3", "--ignore-unknown-fields"), (3, UnknownFieldsPolicy.IGNORE, True)),
        (("--no-generation-defaults",), (1, UnknownFieldsPolicy.REFUSE, False)),
    ],
)
def test_a_flag_goes_before_the_manifest(
    monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], expected: tuple[Any, ...]
) -> None:
    assert asked(monkeypatch, *flags) == expected


@pytest.mark.parametrize(
    ("flags", "expected"), [((), OversizedMaxTokens.REFUSE), (("--clamp-max-tokens",), OversizedMaxTokens.CLAMP)]
)
def test_requests_for_too_many_tokens_are_clamped_by_a_flag_and_other_limits_stay(
    monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], expected: OversizedMaxTokens
) -> None:
    limits = asked_spec(monkeypatch, *flags).gateway.limits
    assert (limits.oversized_max_tokens, limits.max_queued) == (expected, 9)


def test_workers_dtype_and_kv_memory_need_no_file() -> None:
    options = DefaultOptions(prefill=(2, 2), decode=(1, 4), dtype="bfloat16", kv_memory=1 << 30)
    spec = default_deployment("file:///m", "m", 4096, is_on_gpu=False, options=options).spec
    assert (spec.prefill.replicas.min, spec.prefill.replicas.max) == (2, 2)
    assert (spec.decode.replicas.min, spec.decode.replicas.max) == (1, 4)
    assert (spec.model.dtype, spec.prefill.engine.kv_cache_memory) == ("bfloat16", 1 << 30)
    plain = default_deployment("file:///m", "m", 4096, is_on_gpu=False).spec
    assert (plain.prefill.replicas.max, plain.prefill.engine.kv_cache_memory) == (1, None)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--prefill", "2"), "--prefill"),
        (
            ("--tensor-parallel", "2", "--decode-tensor-parallel", "1"),
            "--tensor-parallel, --decode-tensor-parallel",
        ),
        (("--dtype", "auto", "--kv-memory", "1Gi"), "--dtype, --kv-memory"),
    ],
)
def test_options_of_a_model_are_refused_next_to_a_manifest(
    flags: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", "-f", EXAMPLE, *flags]) == 2
    assert f"baton: {named}: not allowed with -f" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0", "3-1", "x", "1-", "-2", "1-9999", "²"])
def test_a_number_of_workers_is_checked(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["up", "m", f"--prefill={text}"])
    assert "must be N or MIN-MAX" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "degrees"),
    [
        ((), (1, 1)),
        (("--tensor-parallel", "2"), (2, 2)),
        (("--prefill-tensor-parallel", "4"), (4, 1)),
        (("--tensor-parallel", "2", "--decode-tensor-parallel", "1"), (2, 1)),
    ],
)
def test_ranks_are_given_for_both_pools_or_for_each(
    monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], degrees: tuple[int, int]
) -> None:
    seen: list[up.UpOptions] = []

    def run(options: up.UpOptions) -> int:
        seen.append(options)
        return 0

    monkeypatch.setattr(up, "run_up", run)
    assert main(["up", "m", *flags]) == 0
    source = seen[0].source
    assert source is not None
    spec = default_deployment("file:///m", "m", 4096, is_on_gpu=False, options=source.pools).spec
    assert (spec.prefill.tensor_parallel, spec.decode.tensor_parallel) == degrees


@pytest.mark.parametrize("text", ["0", "3", "16", "x", "2.0", "²"])
def test_a_number_of_ranks_is_checked(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["up", "m", f"--decode-tensor-parallel={text}"])
    assert "must be 1, 2, 4 or 8" in capsys.readouterr().err


def test_stages_of_a_model_are_an_argument_of_its_prefill_pool() -> None:
    made = default_deployment("file:///m", "m", 4096, is_on_gpu=False, options=DefaultOptions(prefill_stages=2))
    assert [(flag.name, flag.value) for flag in made.spec.prefill.arguments] == [("pipeline-parallel", "2")]
    assert made.spec.decode.arguments == ()
    assert "pipeline-parallel" in as_yaml(made)


@pytest.mark.parametrize("text", ["0", "9", "x", "2.0"])
def test_a_number_of_stages_is_checked(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["up", "m", f"--prefill-pipeline-parallel={text}"])
    assert "must be an integer from 1 to 8" in capsys.readouterr().err


def test_ranks_of_a_model_take_a_gpu_each() -> None:
    spec = default_deployment("file:///m", "m", 4096, is_on_gpu=True, options=DefaultOptions(prefill_degree=2)).spec
    assert (spec.prefill.tensor_parallel, spec.decode.tensor_parallel) == (2, 1)
    assert spec.prefill.accelerators_at_min == 2
