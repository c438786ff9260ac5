"""What is wrong with a kernel's machine code for Hopper: descriptors of products that some path does not set.

A product of a warpgroup (HGMMA) reads the descriptor of a matrix in shared memory from uniform registers. ptxas 12.8
was found to leave out the instructions that set one on one of two branches: it had moved what both have in common, and
only one of them set the rest. The product then multiplied whatever the registers described, out of shared memory at
times. So each register of each descriptor has to be set on every path that leads to its product.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

UNIFORM_REGISTERS = frozenset(range(64))

_LABEL = re.compile(r"\s*(\.L_x_\d+|_\w+):\s*$")
_INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(.*?) ?;(.*)")
_PREDICATE = re.compile(r"@!?U?P\d+ +")
_TARGET = re.compile(r"\.L_x_\d+")
_UNIFORM_RESULT = re.compile(r"UR(\d+)\b")
_PRODUCT = re.compile(r"HGMMA\S* +R\d+, (R\d+, )?gdesc\[UR(\d+)\]")


@dataclass(slots=True)
class _Block:
    """Instructions without a branch, the last one apart."""

    instructions: list[str] = field(default_factory=list)
    followers: list[str] = field(default_factory=list)


def disassembled(cubin: Path) -> str:
    """Return the machine code of a compiled kernel, by the program that Triton brings."""
    from triton import knobs

    command = [knobs.nvidia.nvdisasm.path, "-c", str(cubin)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def find_unset_descriptors(code: str) -> list[str]:
    """Return the products whose descriptor is not set on every path, with the registers that are missing."""
    blocks = _blocks_of(code)
    if not blocks:
        return []
    start = next(iter(blocks))
    set_before = {start: frozenset[int]()}
    to_visit = [start]
    while to_visit:
        name = to_visit.pop()
        after = set_before[name].union(*map(_registers_set, blocks[name].instructions))
        for follower in blocks[name].followers:
            known = set_before.get(follower, UNIFORM_REGISTERS | {-1})
            if known & after != known:
                set_before[follower] = known & after
                to_visit.append(follower)
    return [
        product for name, registers in set_before.items() for product in _products_unset(blocks[name], set(registers))
    ]


def _products_unset(block: _Block, registers: set[int]) -> Iterator[str]:
    for instruction in block.instructions:
        if match := _PRODUCT.search(instruction):
            first = int(match[2])
            # With its other operand in registers a product reads the second of two descriptors only.
            missing = set(range(first + (2 if match[1] else 0), first + 4)) - registers
            if missing:
                yield f"{instruction}: {', '.join(f'UR{number}' for number in sorted(missing))} not set"
        registers.update(_registers_set(instruction))


def _registers_set(instruction: str) -> frozenset[int]:
    operation, _, operands = _PREDICATE.sub("", instruction, count=1).partition(" ")
    match = _UNIFORM_RESULT.match(operands.strip())
    if match is None or operation.startswith(("HGMMA", "ST")):
        return frozenset()
    first = int(match[1])
    return frozenset(range(first, first + (2 if ".64" in operation or "WIDE" in operation else 1)))


def _blocks_of(code: str) -> Mapping[str, _Block]:
    """Blocks by name, which is a label and how many branches lie between it and the block."""
    blocks: dict[str, _Block] = {}
    label, branches, falls_through = "", 0, False

    def begin(name: str) -> _Block:
        if falls_through:
            block.followers.append(name)
        blocks[name] = _Block()
        return blocks[name]

    block = _Block()
    for line in code.splitlines():
        if match := _LABEL.match(line):
            label, branches = match[1], 0
            block = begin(label)
            falls_through = True
        elif label and (match := _INSTRUCTION.match(line)):
            instruction, rest = match[1], match[2]
            block.instructions.append(instruction)
            is_branch = re.search(r"\bBRX?\b|\bBRA\b", instruction)
            if is_branch or re.search(r"\b(EXIT|RET)\b", instruction):
                if is_branch:
                    block.followers += _TARGET.findall(instruction + rest)
                falls_through = instruction.startswith("@")
                branches += 1
                block = begin(f"{label} after {branches}")
                falls_through = True
    return blocks
