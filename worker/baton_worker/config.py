"""A worker's configuration: command-line flags parsed once, at the edge, into one frozen value.

The operator renders these flags (`baton_control.worker_specs`) and a test parses what it renders with this parser.
Sizes that follow from the model (block counts) are decided in `building.block_budget`, not here.
"""

from __future__ import annotations

import argparse
import enum
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from baton_wire.messages.values import POOL_ROLES, Role
from baton_wire.models.sharding.degrees import MAX_RANKS
from baton_worker.errors import ConfigError

KIB = 1024
MAX_SEQUENCES = 64
"""Default number of slots."""
KERNELS_VARIABLE = "BATON_KERNELS"
"""Environment variable that an image with kernels sets."""
KV_CACHE_DTYPES = ("auto", "fp8")


class Task(enum.StrEnum):
    """A kind of work that a deployment is for."""

    GENERATE = "generate"
    EMBED = "embed"
    RERANK = "rerank"


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where to listen; port 0 lets the operating system choose."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The flags of a worker process. None means: decide from the model and the device."""

    role: Role
    """The worker's role; the one that it starts in if it is flexible."""
    model: str
    served_name: str
    listen: ListenAddress
    keys: Path
    announce: Path | None
    template_hash: str
    device: str
    dtype: str
    quantization: str
    kv_cache_dtype: str
    threads: int
    """Torch threads of each rank. One by default: on CPU the pools scale by processes."""
    max_context_tokens: int | None
    kv_cache_bytes: int | None
    block_tokens: int | None
    max_sequences: int
    """Slots of the batch."""
    max_waiting: int
    offloaded_layers: int
    """Layers whose weights stay in the host's memory."""
    offload_decode: bool
    """Allow such layers on a worker that decodes."""
    max_step_tokens: int
    """Prefill tokens computed in one engine step."""
    chunk_tokens: int
    """Longest chunk of one prompt in one step: bounds how long a prefill delays running sequences."""
    verify: str
    transport: str
    min_bandwidth: float | None
    """Bytes per second."""
    drain_s: float
    """Longest drain, after which the process drops its remaining requests."""
    decode_discovery: str | None
    pair_listen: ListenAddress | None
    landing_bytes: int | None
    keep_answers: bool
    """A prefill worker also decodes its own prompts, when a gateway asks for it. A flexible worker always does."""
    flips: bool
    """The worker is flexible: it has both sides of the hand-over and changes its role when it is asked to."""
    prefill_discovery: str | None
    """Discovery of other flexible workers, which may become decode workers."""
    kernels: Path | None
    """Folder of kernels that were compiled ahead."""
    paced: Path | None
    """File of step times to emulate; None: a model computes."""
    metrics_compat: str = "none"
    """`vllm`: metrics are served under vLLM's names too."""
    tasks: tuple[Task, ...] = ()
    """The work that the worker is for; empty: whatever its model can do."""
    tensor_parallel: int = 1
    """Ranks that share the model, each a process of its own; 1: the worker's process computes."""
    pipeline_parallel: int = 1
    """Stages of a prefill worker, each a process with some of the layers."""

    @property
    def has_ranks(self) -> bool:
        """True when processes of their own compute: ranks that share each layer, or stages."""
        return self.tensor_parallel > 1 or self.pipeline_parallel > 1

    @property
    def lands(self) -> bool:
        """True when other workers hand prompts over to this one."""
        return self.flips or self.role is Role.DECODE

    @property
    def hands_over(self) -> bool:
        return self.flips or self.role is Role.PREFILL


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def endpoint(text: str) -> ListenAddress:
    """Parse HOST:PORT; IPv6 hosts in brackets. Raises argparse.ArgumentTypeError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT with a port from 0 to 65535")
    return ListenAddress(host.removeprefix("[").removesuffix("]"), int(port))


def whole_number(low: int, high: int) -> type[int]:
    """The type of an argument from `low` to `high`, both included. Other values are refused with what is allowed."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if not low <= number <= high:
            raise argparse.ArgumentTypeError(f"{number} is not between {low} and {high}")
        return number

    parse.__name__ = "int"
    return parse  # type: ignore[return-value]


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not 0 <= number <= 86_400:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 86400 seconds")
    return number


def _rate(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes per second") from None
    if not 1.0 <= number <= 1e15:
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and 1e15 bytes per second")
    return number


def _tasks(text: str) -> tuple[Task, ...]:
    try:
        tasks = tuple(Task(name) for name in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of {', '.join(Task)}") from None
    if len(set(tasks)) < len(tasks):
        raise argparse.ArgumentTypeError(f"{text!r} names a task twice")
    return tasks


def program(role: Role | None) -> str:
    """A worker's program name; None is the flexible worker's."""
    return f"baton-{'flexible' if role is None else role.value}-worker"


def parser(role: Role | None) -> argparse.ArgumentParser:
    """The flags of a worker of this role; None: of a flexible worker, which has a flag for its first role."""
    flags = _Parser(prog=program(role), allow_abbrev=False)
    add = flags.add_argument
    add("--model", required=True, help="directory with config.json, safetensors and tokenizer, or random://CONFIG")
    add("--served-name", required=True, help="model name that clients use")
    add("--listen", type=endpoint, required=True, metavar="HOST:PORT", help="gateway links, health, metrics")
    add("--keys", type=Path, required=True, metavar="DIR", help="directory of link keys; file name = key id")
    add("--announce", type=Path, metavar="FILE", help="written once ready: addresses and epoch as JSON")
    add("--template-hash", default="local", metavar="HASH")
    add("--metrics-compat", choices=("none", "vllm"), default="none", help="vllm: metrics under vLLM's names too")
    add("--tasks", type=_tasks, default=(), metavar="LIST", help="of generate, embed, rerank; default: by the model")
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--dtype", choices=("auto", "float32", "bfloat16", "float16"), default="auto")
    add(
        "--quantization",
        choices=("none", "auto"),
        default="none",
        help="auto: weights as stored in the checkpoint; none: refuse quantised ones",
    )
    add("--kv-cache-dtype", choices=KV_CACHE_DTYPES, default="auto", help="auto: as --dtype; fp8: e4m3, cuda only")
    add(
        "--tensor-parallel",
        type=whole_number(1, MAX_RANKS),
        default=1,
        metavar="N",
        help="ranks, on cuda each with a GPU",
    )
    add(
        "--pipeline-parallel",
        type=whole_number(1, MAX_RANKS),
        default=1,
        metavar="N",
        help="stages of a prefill worker; cpu only",
    )
    add("--threads", type=whole_number(1, 1_024), default=1, metavar="N")
    add("--max-context-tokens", type=whole_number(16, 1 << 20), metavar="N")
    add("--kv-cache-bytes", type=whole_number(64 * KIB, 1 << 46), metavar="N")
    add("--block-tokens", type=whole_number(1, 4_096), metavar="N", help="default 16 on cpu, 64 on cuda")
    add("--max-sequences", type=whole_number(1, 4_096), default=MAX_SEQUENCES, metavar="N")
    add("--max-waiting", type=whole_number(1, 1 << 20), default=1_024, metavar="N")
    add(
        "--offloaded-layers",
        type=whole_number(0, 1_024),
        default=0,
        metavar="N",
        help="weights in host memory; cuda only",
    )
    add("--offload-decode", action="store_true", help="offload on a worker that decodes: every token waits for copies")
    add("--max-step-tokens", type=whole_number(16, 1 << 20), default=8_192, metavar="N")
    add("--chunk-tokens", type=whole_number(16, 1 << 20), metavar="N", help="default: all of max-step-tokens")
    add("--verify", choices=("full", "stamps"), default="full", help="checksums of handed-over KV")
    add("--transport", choices=("auto", "tcp", "ucx"), default="auto", help="how KV travels; ucx needs the extra `ucx`")
    add("--min-bandwidth", type=_rate, metavar="B/S", help="KV links measured slower than this are reported")
    add(
        "--kernels",
        type=Path,
        default=os.environ.get(KERNELS_VARIABLE) or None,
        metavar="DIR",
        help=f"folder made by `baton compile`; cuda only (default: ${KERNELS_VARIABLE})",
    )
    add("--drain-s", type=_seconds, default=600.0, metavar="S")
    add("--paced", type=Path, metavar="FILE", help="emulate: compute nothing, take as long as these step times")
    if role is None:
        add("--role", choices=POOL_ROLES, type=Role, required=True, help="role until the first flip")
        add("--prefill-discovery", metavar="SPEC", help="like --decode-discovery, for flexible prefill workers")
    if role is not Role.DECODE:
        add("--decode-discovery", metavar="SPEC", help="file:PATH or dns:NAME:PORT of decode workers to link early")
    if role is Role.PREFILL:
        add("--keep-answers", action="store_true", help="also decode prompts computed here; captures those steps too")
    else:
        add("--pair-listen", type=endpoint, default=ListenAddress("127.0.0.1", 0), metavar="HOST:PORT")
        add("--landing-bytes", type=whole_number(64 * KIB, 1 << 44), metavar="N")
    return flags


def parse(program_role: Role | None, argv: Sequence[str]) -> WorkerConfig:
    """Parse the arguments of a worker of this role (None: of a flexible one).

    Raises ConfigError with one line that names the flag, the value and what is allowed.
    """
    flags = vars(parser(program_role).parse_args(argv))
    role = flags.pop("role", program_role)
    if flags["chunk_tokens"] is None:
        flags["chunk_tokens"] = flags["max_step_tokens"]
    if flags["chunk_tokens"] > flags["max_step_tokens"]:
        raise ConfigError(
            f"argument --chunk-tokens: {flags['chunk_tokens']} is more than "
            f"--max-step-tokens {flags['max_step_tokens']}"
        )
    if flags["offloaded_layers"] and flags["device"] != "cuda":
        raise ConfigError(f"argument --offloaded-layers: not with --device {flags['device']}; allowed there: 0")
    if flags["tensor_parallel"] > 1:
        _check_ranks(flags)
    flips = program_role is None
    flags.setdefault("keep_answers", flips)
    if flags["pipeline_parallel"] > 1:
        _check_stages(program_role, flags)
    decodes = program_role is not Role.PREFILL or flags["keep_answers"]
    if flags["offloaded_layers"] and decodes and not flags["offload_decode"]:
        raise ConfigError(
            "argument --offloaded-layers: every token would wait for the copies; allowed without --offload-decode: 0"
        )
    for absent in ("decode_discovery", "prefill_discovery", "pair_listen", "landing_bytes"):
        flags.setdefault(absent, None)
    return WorkerConfig(role=role, flips=flips, **flags)


def _check_ranks(flags: Mapping[str, Any]) -> None:
    """Raises ConfigError where several ranks cannot run."""
    flag = f"argument --tensor-parallel: {flags['tensor_parallel']}"
    if flags["paced"] is not None:
        raise ConfigError(f"{flag} with --paced, of which nothing computes; allowed there: 1")
    if flags["offloaded_layers"]:
        raise ConfigError(f"{flag} with --offloaded-layers {flags['offloaded_layers']}; allowed there: 1")
    if flags["device"] != "cpu" and flags["transport"] == "ucx":
        raise ConfigError(
            "argument --transport: ucx with several ranks on GPUs, whose memory the worker's process cannot register; "
            "allowed there: auto, tcp"
        )
    _require_linux(flag)


def _check_stages(program_role: Role | None, flags: Mapping[str, Any]) -> None:
    """Raises ConfigError where the layers of a model cannot be shared out as stages."""
    flag = f"argument --pipeline-parallel: {flags['pipeline_parallel']}"
    if program_role is not Role.PREFILL or flags["keep_answers"]:
        worker = "--keep-answers" if program_role is Role.PREFILL else f"a {program_role or 'flexible'} worker"
        raise ConfigError(
            f"{flag} with {worker}: a step that decodes needs the token of the step before, so that one stage alone "
            "would compute at a time; allowed there: 1"
        )
    if flags["device"] != "cpu":
        raise ConfigError(f"{flag} with --device {flags['device']}: stages compute on CPUs only; allowed there: 1")
    if flags["tensor_parallel"] > 1:
        raise ConfigError(f"{flag} with --tensor-parallel {flags['tensor_parallel']}; allowed there: 1")
    if flags["paced"] is not None:
        raise ConfigError(f"{flag} with --paced, of which nothing computes; allowed there: 1")
    if others := [task for task in flags["tasks"] if task is not Task.GENERATE]:
        raise ConfigError(f"{flag} with --tasks {','.join(others)}: stages answer alone; allowed there: 1")
    _require_linux(flag)


def _require_linux(flag: str) -> None:
    if not hasattr(os, "memfd_create") or not hasattr(os, "eventfd") or not hasattr(os, "pidfd_open"):
        raise ConfigError(f"{flag}: ranks need Linux; allowed on this system: 1")
