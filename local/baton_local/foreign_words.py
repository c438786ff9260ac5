"""Commands and flags of other programs, with what `baton` calls them. docs/from-vllm.md has the same as a table."""

from __future__ import annotations

from collections.abc import Mapping

COMMANDS: Mapping[str, str] = {
    "serve": "up",
    "run": "up",
    "start": "up",
    "run-batch": "batch",
    "stop": "down",
    "kill": "down",
    "ps": "status",
    "list": "status",
    "ls": "status",
    "log": "logs",
    "benchmark": "bench",
    "check": "doctor",
    "lint": "validate",
    "eval": "quality",
    "trace": "explain",
}
"""Commands of vLLM, Docker and others."""

FLAGS: Mapping[str, str] = {
    "gpu": "--device cuda",
    "gpus": "--device cuda",
    "cpu": "--device cpu",
    "model": "MODEL without a flag",
    "served-model-name": "--served-name",
    "max-model-len": "--max-context-tokens",
    "ctx-size": "--max-context-tokens",
    "num-ctx": "--max-context-tokens",
    "tensor-parallel-size": "--tensor-parallel",
    "gpu-memory-utilization": "--kv-memory",
    "revision": "MODEL as hf://ORG/NAME@REVISION",
    "generation-config": "--no-generation-defaults",
    "download-dir": "--cache",
    "replicas": "--prefill and --decode",
    "workers": "--prefill and --decode",
    "namespace": "--name NAMESPACE.NAME",
    "deployment": "--name",
    "output": "--format",
    "tail": "--follow",
}
"""Flags of vLLM, llama.cpp, Docker and kubectl, without their dashes."""


def own_command(word: str) -> str | None:
    """The command that a word of another program means; None: none.

    >>> own_command("serve")
    'up'
    """
    return COMMANDS.get(word)


def own_flag(word: str, known: list[str]) -> str | None:
    """What a flag of another program is called, if the command has it. `known`: the flags of the command.

    >>> own_flag("--gpu", ["--device"]), own_flag("--gpu", ["--name"])
    ('--device cuda', None)
    """
    meant = FLAGS.get(word.removeprefix("--"))
    if meant is None or not any(part.startswith("--") for part in meant.split()):
        return meant
    flags = [part for part in meant.split() if part.startswith("--")]
    return meant if all(flag in known for flag in flags) else None
