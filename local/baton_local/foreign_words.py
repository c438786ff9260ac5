"""Commands and flags of other programs, with what `baton` calls them. docs/from-vllm.md has the same as a table."""

from __future__ import annotations

from collections.abc import Mapping


def _read(table: str) -> Mapping[str, str]:
    """A table of lines: words of other programs, an arrow, and ours."""
    pairs = (line.split(" → ") for line in table.strip().splitlines())
    return {word: own.strip() for words, own in pairs for word in words.split()}


COMMANDS = _read(
    """
    serve run start      → up
    run-batch            → batch
    stop kill            → down
    ps list ls           → status
    log                  → logs
    benchmark            → bench
    check                → doctor
    lint                 → validate
    eval                 → quality
    trace                → explain
    """
)
"""Commands of vLLM, Docker and others."""

FLAGS = _read(
    """
    gpu gpus                         → --device cuda
    cpu                              → --device cpu
    model                            → MODEL without a flag
    served-model-name                → --served-name
    max-model-len ctx-size num-ctx   → --max-context-tokens
    tensor-parallel-size             → --tensor-parallel
    gpu-memory-utilization           → --kv-memory
    revision                         → MODEL as hf://ORG/NAME@REVISION
    generation-config                → --no-generation-defaults
    download-dir                     → --cache
    replicas workers                 → --prefill and --decode
    namespace                        → --name NAMESPACE.NAME
    deployment                       → --name
    output                           → --format
    tail                             → --follow
    """
)
"""Flags of vLLM, llama.cpp, Docker and kubectl, without their dashes."""


def own_command(word: str) -> str | None:
    """The command that a word of another program means; None: none.

    >>> own_command("serve")
    'up'
    """
    return COMMANDS.get(word)


def own_flag(word: str, known: list[str]) -> str | None:
    """The command's own flag for one of another program, if it has one. `known`: the flags of the command.

    >>> own_flag("--gpu", ["--device"]), own_flag("--gpu", ["--name"])
    ('--device cuda', None)
    """
    meant = FLAGS.get(word.removeprefix("--"))
    if meant is None:
        return None
    return meant if all(part in known for part in meant.split() if part.startswith("--")) else None
