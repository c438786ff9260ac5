"""Flags become one frozen configuration, or one line that names the flag, the value and what is allowed."""

from __future__ import annotations

import pytest

from baton_wire.messages.values import Role
from baton_worker.config import ListenAddress, parse
from baton_worker.errors import ConfigError

BASE = ("--model=/m", "--served-name=tiny", "--listen=127.0.0.1:0", "--keys=/k")


def test_defaults_leave_model_and_device_decisions_open() -> None:
    config = parse(Role.DECODE, BASE)
    assert config.listen == ListenAddress("127.0.0.1", 0)
    assert config.pair_listen == ListenAddress("127.0.0.1", 0)
    assert config.kv_cache_bytes is None
    assert config.chunk_tokens == config.max_step_tokens
    assert config.decode_discovery is None


def test_ipv6_endpoints_are_bracketed() -> None:
    assert parse(Role.PREFILL, (*BASE[:2], "--listen=[::1]:80", BASE[3])).listen == ListenAddress("::1", 80)


@pytest.mark.parametrize(
    ("flag", "names"),
    [
        ("--listen=nowhere", "HOST:PORT"),
        ("--listen=h:70000", "HOST:PORT"),
        ("--max-sequences=0", "between 1 and 4096"),
        ("--max-sequences=many", "not a whole number"),
        ("--device=tpu", "invalid choice"),
        ("--dtype=int8", "invalid choice"),
        ("--kv-cache-dtype=int8", "invalid choice"),
        ("--drain-s=nan", "between 0 and 86400"),
        ("--kv-cache-bytes=1", "between"),
        ("--unknown=1", "unrecognized arguments"),
        ("--chunk-tokens=9000", "--max-step-tokens 8192"),
        ("--landing-bytes=99999999", "unrecognized arguments"),
        ("--offloaded-layers=2", "not with --device cpu"),
        ("--offloaded-layers=2000", "between 0 and 1024"),
    ],
)
def test_a_bad_flag_is_named(flag: str, names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        parse(Role.PREFILL, (*BASE, flag))


def test_decode_workers_offload_only_on_purpose() -> None:
    flags = (*BASE, "--device=cuda", "--offloaded-layers=4")
    assert parse(Role.PREFILL, flags).offloaded_layers == 4
    with pytest.raises(ConfigError, match="--offload-decode"):
        parse(Role.PREFILL, (*flags, "--keep-answers"))
    with pytest.raises(ConfigError, match="--offload-decode"):
        parse(Role.DECODE, flags)
    assert parse(Role.DECODE, (*flags, "--offload-decode")).offloaded_layers == 4


def test_a_missing_flag_is_named() -> None:
    with pytest.raises(ConfigError, match="--keys"):
        parse(Role.PREFILL, BASE[:3])


def test_a_worker_that_flips_is_told_as_what_it_begins() -> None:
    config = parse(None, (*BASE, "--role=decode", "--decode-discovery=file:/d", "--landing-bytes=99999999"))
    assert (config.role, config.flips, config.keep_answers) == (Role.DECODE, True, True)
    assert (config.lands, config.hands_over) == (True, True)
    assert (config.decode_discovery, config.prefill_discovery) == ("file:/d", None)
    with pytest.raises(ConfigError, match="--role"):
        parse(None, BASE)
    with pytest.raises(ConfigError, match=r"--role.*gateway"):
        parse(None, (*BASE, "--role=gateway"))
    with pytest.raises(ConfigError, match="--offload-decode"):
        parse(None, (*BASE, "--role=prefill", "--device=cuda", "--offloaded-layers=4"))


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_a_worker_of_one_role_has_one_side(role: Role) -> None:
    config = parse(role, BASE)
    assert (config.flips, config.lands, config.hands_over) == (False, role is Role.DECODE, role is Role.PREFILL)
    with pytest.raises(ConfigError, match="unrecognized arguments"):
        parse(role, (*BASE, f"--role={role}"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--tensor-parallel=0",), "0 is not between 1 and 8"),
        (("--tensor-parallel=9",), "9 is not between 1 and 8"),
        (
            ("--tensor-parallel=2", "--device=cuda", "--transport=ucx"),
            "--transport: ucx .*allowed there: auto, tcp",
        ),
        (
            ("--tensor-parallel=2", "--device=cuda", "--offloaded-layers=3"),
            "--tensor-parallel: 2 with --offloaded-layers 3; allowed there: 1",
        ),
        (("--tensor-parallel=2", "--paced=times.json"), "--tensor-parallel: 2 with --paced.*allowed there: 1"),
    ],
)
def test_ranks_that_cannot_run_are_refused(flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(Role.PREFILL, (*BASE, *flags))


@pytest.mark.parametrize(
    ("role", "flags", "message"),
    [
        (Role.DECODE, (), "2 with a decode worker: a step that decodes needs the token .*allowed there: 1"),
        (None, ("--role=prefill",), "2 with a flexible worker: a step that decodes needs the token .*allowed there: 1"),
        (Role.PREFILL, ("--keep-answers",), "2 with --keep-answers: a step that decodes .*allowed there: 1"),
        (Role.PREFILL, ("--device=cuda",), "2 with --device cuda: stages compute on CPUs only; allowed there: 1"),
        (Role.PREFILL, ("--tensor-parallel=2",), "2 with --tensor-parallel 2; allowed there: 1"),
        (Role.PREFILL, ("--paced=times.json",), "2 with --paced, of which nothing computes; allowed there: 1"),
        (Role.PREFILL, ("--tasks=generate,embed",), "2 with --tasks embed: stages answer alone; allowed there: 1"),
    ],
)
def test_stages_that_cannot_run_are_refused(role: Role | None, flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=f"argument --pipeline-parallel: {message}"):
        parse(role, (*BASE, "--pipeline-parallel=2", *flags))


def test_stages_are_for_prefill_workers() -> None:
    assert not parse(Role.PREFILL, BASE).has_ranks
    config = parse(Role.PREFILL, (*BASE, "--pipeline-parallel=4"))
    assert (config.pipeline_parallel, config.has_ranks, config.tensor_parallel) == (4, True, 1)


def test_a_worker_has_one_rank_unless_it_is_given_more() -> None:
    assert parse(Role.DECODE, BASE).tensor_parallel == 1
    assert parse(Role.DECODE, (*BASE, "--tensor-parallel=2")).tensor_parallel == 2
    assert parse(Role.DECODE, (*BASE, "--tensor-parallel=2", "--device=cuda")).tensor_parallel == 2
