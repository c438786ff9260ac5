"""A machine for PTX without branches: it runs a compiled kernel on a CPU, program by program, all threads in step.

Kernels in Gluon run in no interpreter. This one runs what the compiler made of them, so that layouts, addresses and
inline assembly are all part of the test. It knows the instructions that it has met; another one raises KeyError.
Threads take each instruction together, which makes barriers empty: it finds no races. Loads and stores have to stay
within the tensors that the kernel was given.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy
import torch

from baton_testing.kernels.ptx_registers import WIDTH, Lanes, PtxRegisters, bfloat16_bits, of_bfloat16


class PtxMachine:
    """One launch of a kernel with num_warps warps; `parameters` in the order of its entry."""

    def __init__(
        self, text: str, warps: int, tensors: Sequence[torch.Tensor], parameters: Sequence[int | float]
    ) -> None:
        self._threads = 32 * warps
        self._parameters = parameters
        self._steps = list(_statements(text))
        self._buffers = [(t.data_ptr(), _bytes_of(t)) for t in tensors]

    def run(self, grid: Sequence[int]) -> None:
        for place in product(*(range(count) for count in reversed(grid))):
            self._program(dict(zip("xyz", reversed(place), strict=False)))

    def _program(self, place: dict[str, int]) -> None:
        self._registers = PtxRegisters(self._threads, {f"%ctaid.{axis}": number for axis, number in place.items()})
        self._shared = numpy.zeros(1 << 16, numpy.uint8)
        for guard, opcode, operands in self._steps:
            active = numpy.ones(self._threads, bool)
            if guard:
                holds = self._registers.bits(guard.lstrip("@!")) == 1
                active = ~holds if guard.startswith("@!") else holds
            self._step(opcode.split("."), operands, active)

    def _step(self, parts: list[str], operands: list[str], active: Any) -> None:
        name, kind = parts[0], parts[-1]
        if name in ("griddepcontrol", "bar", "ret"):
            return
        if name == "ld" and parts[1] == "param":
            number = int(re.findall(r"param_(\d+)", operands[1])[0])
            self._registers.write(operands[0], numpy.full(self._threads, _parameter(self._parameters[number])), active)
        elif name in ("ld", "st"):
            (self._load if name == "ld" else self._store)(parts, operands, active)
        elif name == "mma":
            self._multiply(operands)
        elif parts[:2] == ["mul", "rn"] and kind == "bf16x2":
            one, other = self._registers.bits(operands[1]), self._registers.bits(operands[2])
            low = bfloat16_bits(of_bfloat16(one) * of_bfloat16(other))
            high = bfloat16_bits(of_bfloat16(one >> 16) * of_bfloat16(other >> 16))
            self._registers.write(operands[0], low | high << 16, active)
        else:
            with numpy.errstate(all="ignore"):
                self._registers.write(operands[0], self._registers.computed(parts, operands[1:]), active)

    def _memory(self, space: str, addresses: Lanes, active: Any, size: int) -> tuple[Any, Lanes]:
        if space == "shared":
            return self._shared, addresses
        first, last = int(addresses[active].min()), int(addresses[active].max()) + size
        for base, buffer in self._buffers:
            if base <= first and last <= base + len(buffer):
                return buffer, addresses - numpy.uint64(base)
        raise IndexError(f"bytes {first:#x} to {last:#x} belong to none of the tensors")

    def _load(self, parts: list[str], operands: list[str], active: Any) -> None:
        names, size = _names(operands[0]), WIDTH[parts[-1]] // 8
        addresses = self._address(operands[1])
        if not active.any():
            return
        buffer, places = self._memory(parts[1], addresses, active, size * len(names))
        places = numpy.where(active, places, places[active][0]).astype(numpy.int64)
        for number, name in enumerate(names):
            value = numpy.zeros(self._threads, numpy.uint64)
            for byte in range(size):
                value |= buffer[places + number * size + byte].astype(numpy.uint64) << numpy.uint64(8 * byte)
            self._registers.write(name, value, active)

    def _store(self, parts: list[str], operands: list[str], active: Any) -> None:
        names, size = _names(operands[1]), WIDTH[parts[-1]] // 8
        addresses = self._address(operands[0])
        if not active.any():
            return
        buffer, places = self._memory(parts[1], addresses, active, size * len(names))
        for number, name in enumerate(names):
            value = self._registers.bits(name)[active]
            for byte in range(size):
                at = places[active].astype(numpy.int64) + number * size + byte
                buffer[at] = (value >> numpy.uint64(8 * byte) & numpy.uint64(255)).astype(numpy.uint8)

    def _address(self, operand: str) -> Lanes:
        register, *offset = (part.strip() for part in operand.strip("[] ").split("+"))
        return self._registers.bits(register) + numpy.uint64(int(offset[0], 0) if offset else 0)

    def _multiply(self, operands: list[str]) -> None:
        """m16n8k16 of bfloat16 with sums in float32, for each warp."""
        out, left, right, before = (_names(operand) for operand in operands)
        lane = numpy.arange(32)
        row, pair = lane // 4, lane % 4 * 2
        a = numpy.zeros((self._threads // 32, 16, 16), numpy.float64)
        b = numpy.zeros((self._threads // 32, 16, 8), numpy.float64)
        for number, name in enumerate(left):
            bits = self._registers.bits(name).reshape(-1, 32)
            for side in (0, 1):
                column = pair + 8 * (number // 2) + side
                a[:, row + 8 * (number % 2), column] = of_bfloat16(bits >> numpy.uint64(16 * side))
        for number, name in enumerate(right):
            bits = self._registers.bits(name).reshape(-1, 32)
            for side in (0, 1):
                b[:, pair + 8 * number + side, row] = of_bfloat16(bits >> numpy.uint64(16 * side))
        product_ = a @ b
        active = numpy.ones(self._threads, bool)
        sums = [self._registers.read(name, "f32").reshape(-1, 32) for name in before]
        for number, name in enumerate(out):
            value = product_[:, row + 8 * (number // 2), pair + number % 2] + sums[number]
            self._registers.write(name, value.astype(numpy.float32).reshape(-1), active)


def _statements(text: str) -> Iterator[tuple[str, str, list[str]]]:
    """Guard, instruction and operands of each."""
    body = text[text.index(".reqntid") :]
    body = body[body.index("{") + 1 : body.index("$L__func_end")]
    body = re.sub(r"//[^\n]*|/\*.*?\*/", "", body)
    body = re.sub(r"^\s*\.loc[^\n]*$|^\s*\$\w+:", "", body, flags=re.M)
    for statement in body.split(";"):
        statement = re.sub(r"^[\s{}]+", "", statement).strip()
        if not statement or statement.startswith("."):
            continue
        guard, opcode, rest = re.fullmatch(r"(@!?%p\d+\s+)?([\w.:]+)\s*(.*)", statement, flags=re.S).groups()  # type: ignore[union-attr]
        operands = [operand.strip() for operand in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*", rest)]
        yield (guard or "").strip(), opcode, operands


def _names(operand: str) -> list[str]:
    return [name.strip() for name in operand.strip("{} ").split(",")]


def _parameter(value: int | float) -> Any:
    if isinstance(value, float):
        return numpy.uint64(struct.unpack("<I", struct.pack("<f", value))[0])
    return numpy.uint64(value & (1 << 64) - 1)


def _bytes_of(tensor: torch.Tensor) -> Any:
    return tensor.view(-1).view(torch.uint8).numpy()
