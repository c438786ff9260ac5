"""A machine for PTX without loops: it runs a compiled kernel on a CPU, program by program, all threads in step.

Kernels in Gluon run in no interpreter. This one runs what the compiler made of them, so that layouts, addresses and
inline assembly are all part of the test. It knows the instructions that it has met; another one raises KeyError.
Threads take each instruction and each branch together, which makes barriers empty: it finds no races. Loads and stores
have to stay within the tensors that the kernel was given.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from types import SimpleNamespace
from typing import Any, Final

import numpy
import torch

Lanes = Any
"""uint64 [threads]: the bits of a register in each thread."""

_WIDTH: Final = {"pred": 1, **{f"{kind}{bits}": bits for kind in "bsuf" for bits in (16, 32, 64)}}
_FLOATS: Final = {"f32"}
_SETP: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "eq": numpy.equal,
    "ne": numpy.not_equal,
    "lt": numpy.less,
    "gt": numpy.greater,
}
_TWO: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "add": numpy.add,
    "sub": numpy.subtract,
    "mul": numpy.multiply,
    "min": numpy.minimum,
    "max": numpy.maximum,
    "and": numpy.bitwise_and,
    "or": numpy.bitwise_or,
    "xor": numpy.bitwise_xor,
}


def bfloat16_bits(values: Any) -> Any:
    """float32 → its nearest bfloat16, of two the even one, as 16 bits."""
    bits = values.astype(numpy.float32).view(numpy.uint32).astype(numpy.uint64)
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 & 0xFFFF


def of_bfloat16(bits: Any) -> Any:
    """16 bits → float32."""
    return ((bits & 0xFFFF) << 16).astype(numpy.uint32).view(numpy.float32)


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
        self._registers: dict[str, Lanes] = {}
        self._shared = numpy.zeros(1 << 16, numpy.uint8)
        self._special = {f"%ctaid.{axis}": number for axis, number in place.items()}
        awaited = ""
        for guard, opcode, operands in self._steps:
            if awaited and opcode != awaited:
                continue
            awaited = ""
            active = numpy.ones(self._threads, bool)
            if guard:
                holds = self._registers[guard.lstrip("@!")] == 1
                active = ~holds if guard.startswith("@!") else holds
            if opcode.startswith("bra"):
                assert active.all() or not active.any(), "threads part"
                awaited = operands[0] if active.all() else ""
            elif not opcode.startswith("$"):
                self._step(opcode.split("."), operands, active)

    # Values.

    def _read(self, operand: str, kind: str) -> Any:
        width = _WIDTH[kind]
        bits = self._bits(operand) & numpy.uint64((1 << width) - 1)
        if kind in _FLOATS:
            return bits.astype(numpy.uint32).view(numpy.float32)
        if kind.startswith("s"):
            return bits.astype(f"u{width // 8}").view(f"i{width // 8}")
        return bits.astype(f"u{width // 8}") if width > 1 else bits

    def _bits(self, operand: str) -> Lanes:
        if operand in self._registers:
            return self._registers[operand]
        if operand == "%tid.x":
            return numpy.arange(self._threads, dtype=numpy.uint64)
        if operand in self._special:
            value = self._special[operand]
        elif operand == "global_smem":
            value = 0
        elif operand.startswith("0f"):
            value = int(operand[2:], 16)
        else:
            value = int(operand, 0) & (1 << 64) - 1
        return numpy.full(self._threads, value, numpy.uint64)

    def _write(self, name: str, value: Any, active: Any) -> None:
        value = numpy.asarray(value)
        if value.dtype == numpy.float32:
            value = value.view(numpy.uint32)
        if value.dtype.kind == "i":
            value = value.view(f"u{value.dtype.itemsize}")
        before = self._registers.get(name, numpy.zeros(self._threads, numpy.uint64))
        self._registers[name] = numpy.where(active, value.astype(numpy.uint64), before)

    # Memory.

    def _memory(self, space: str, addresses: Lanes, active: Any, size: int) -> tuple[Any, Lanes]:
        if space == "shared":
            return self._shared, addresses
        first, last = int(addresses[active].min()), int(addresses[active].max()) + size
        for base, buffer in self._buffers:
            if base <= first and last <= base + len(buffer):
                return buffer, addresses - numpy.uint64(base)
        raise IndexError(f"bytes {first:#x} to {last:#x} belong to none of the tensors")

    def _load(self, parts: list[str], operands: list[str], active: Any) -> None:
        names, size = _names(operands[0]), _WIDTH[parts[-1]] // 8
        addresses = self._address(operands[1])
        if not active.any():
            return
        buffer, places = self._memory(parts[1], addresses, active, size * len(names))
        places = numpy.where(active, places, places[active][0]).astype(numpy.int64)
        for number, name in enumerate(names):
            value = numpy.zeros(self._threads, numpy.uint64)
            for byte in range(size):
                value |= buffer[places + number * size + byte].astype(numpy.uint64) << numpy.uint64(8 * byte)
            self._write(name, value, active)

    def _store(self, parts: list[str], operands: list[str], active: Any) -> None:
        names, size = _names(operands[1]), _WIDTH[parts[-1]] // 8
        addresses = self._address(operands[0])
        if not active.any():
            return
        buffer, places = self._memory(parts[1], addresses, active, size * len(names))
        for number, name in enumerate(names):
            value = self._bits(name)[active]
            for byte in range(size):
                at = places[active].astype(numpy.int64) + number * size + byte
                buffer[at] = (value >> numpy.uint64(8 * byte) & numpy.uint64(255)).astype(numpy.uint8)

    def _load_matrices(self, operands: list[str]) -> None:
        """Of 8 rows of 16 bytes each, whose addresses eight threads have; a thread gets 4 bytes of one row."""
        lane, everyone = numpy.arange(self._threads), numpy.ones(self._threads, bool)
        addresses = self._address(operands[1]).astype(numpy.int64)
        for number, name in enumerate(_names(operands[0])):
            places = addresses[lane // 32 * 32 + 8 * number + lane % 32 // 4] + lane % 4 * 4
            parts = [self._shared[places + byte].astype(numpy.uint64) << numpy.uint64(8 * byte) for byte in range(4)]
            self._write(name, parts[0] | parts[1] | parts[2] | parts[3], everyone)

    def _address(self, operand: str) -> Lanes:
        register, *offset = (part.strip() for part in operand.strip("[] ").split("+"))
        return self._bits(register) + numpy.uint64(int(offset[0], 0) if offset else 0)

    # Instructions.

    def _step(self, parts: list[str], operands: list[str], active: Any) -> None:
        name, kind = parts[0], parts[-1]
        if name in ("griddepcontrol", "bar", "ret"):
            return
        if name == "ld" and parts[1] == "param":
            number = int(re.findall(r"param_(\d+)", operands[1])[0])
            self._write(operands[0], numpy.full(self._threads, _parameter(self._parameters[number])), active)
        elif name in ("ld", "st"):
            (self._load if name == "ld" else self._store)(parts, operands, active)
        elif name == "mma":
            self._multiply(operands)
        elif name == "ldmatrix":
            self._load_matrices(operands)
        elif parts[:2] == ["mul", "rn"] and kind == "bf16x2":
            one, other = self._bits(operands[1]), self._bits(operands[2])
            low = bfloat16_bits(of_bfloat16(one) * of_bfloat16(other))
            high = bfloat16_bits(of_bfloat16(one >> 16) * of_bfloat16(other >> 16))
            self._write(operands[0], low | high << 16, active)
        else:
            with numpy.errstate(all="ignore"):
                self._write(operands[0], self._value(parts, operands[1:]), active)

    def _value(self, parts: list[str], sources: list[str]) -> Any:
        name, kind = parts[0], parts[-1]
        if name == "mov":
            return self._bits(sources[0]) & numpy.uint64((1 << _WIDTH[kind]) - 1)
        if name == "not":
            return ~self._read(sources[0], kind) & ((1 << _WIDTH[kind]) - 1)
        if name == "cvt":
            if kind == "bf16":
                return of_bfloat16(self._bits(sources[0]))
            value = self._read(sources[0], kind)
            target = parts[-2]
            if target == "bf16":
                return bfloat16_bits(value)
            width = _WIDTH[target] // 8
            return value.astype(f"i{width}" if kind.startswith("s") else f"u{width}")
        if name == "shfl":
            lane = numpy.arange(self._threads) ^ int(sources[1])
            return self._bits(sources[0])[lane]
        if name == "prmt":
            both = self._bits(sources[0]) | self._bits(sources[1]) << numpy.uint64(32)
            selector = int(sources[2], 0)
            taken = [both >> numpy.uint64(8 * (selector >> 4 * byte & 7)) & numpy.uint64(255) for byte in range(4)]
            return taken[0] | taken[1] << 8 | taken[2] << 16 | taken[3] << 24
        if name == "lop3":
            a, b, c = (self._bits(source) & numpy.uint64(0xFFFFFFFF) for source in sources[:3])
            table, total = int(sources[3], 0), numpy.zeros(self._threads, numpy.uint64)
            for number in range(8):
                if table >> number & 1:
                    total |= (a if number & 4 else ~a) & (b if number & 2 else ~b) & (c if number & 1 else ~c)
            return total & numpy.uint64(0xFFFFFFFF)
        if name == "bfe":
            start, count = int(sources[1]), int(sources[2])
            return self._bits(sources[0]) >> numpy.uint64(start) & numpy.uint64((1 << count) - 1)
        if name == "setp":
            return _SETP[parts[1]](self._read(sources[0], kind), self._read(sources[1], kind)).astype(numpy.uint64)
        if name == "selp":
            return numpy.where(self._bits(sources[2]) == 1, self._read(sources[0], kind), self._read(sources[1], kind))
        if name in ("shl", "shr"):
            value = self._read(sources[0], kind)
            count = numpy.minimum(self._read(sources[1], "u32"), 8 * value.dtype.itemsize - 1).astype(value.dtype)
            return value << count if name == "shl" else value >> count
        if name == "ex2":
            return numpy.exp2(self._read(sources[0], kind))
        if name == "div" and kind == "f32":
            return self._read(sources[0], kind) / self._read(sources[1], kind)
        if name == "div":
            one, other = self._read(sources[0], kind), self._read(sources[1], kind)
            return numpy.trunc(one / other).astype(one.dtype)
        if "wide" in parts:
            wide = "i8" if kind.startswith("s") else "u8"
            value = self._read(sources[0], kind).astype(wide) * self._read(sources[1], kind).astype(wide)
            return value if name == "mul" else value + self._bits(sources[2]).view(wide)
        if name in ("mad", "fma"):
            return self._read(sources[0], kind) * self._read(sources[1], kind) + self._read(sources[2], kind)
        return _TWO[name](self._read(sources[0], kind), self._read(sources[1], kind))

    def _multiply(self, operands: list[str]) -> None:
        """m16n8k16 of bfloat16 with sums in float32, for each warp."""
        out, left, right, before = (_names(operand) for operand in operands)
        lane = numpy.arange(32)
        row, pair = lane // 4, lane % 4 * 2
        a = numpy.zeros((self._threads // 32, 16, 16), numpy.float64)
        b = numpy.zeros((self._threads // 32, 16, 8), numpy.float64)
        for number, name in enumerate(left):
            bits = self._bits(name).reshape(-1, 32)
            for side in (0, 1):
                column = pair + 8 * (number // 2) + side
                a[:, row + 8 * (number % 2), column] = of_bfloat16(bits >> numpy.uint64(16 * side))
        for number, name in enumerate(right):
            bits = self._bits(name).reshape(-1, 32)
            for side in (0, 1):
                b[:, pair + 8 * number + side, row] = of_bfloat16(bits >> numpy.uint64(16 * side))
        product_ = a @ b
        active = numpy.ones(self._threads, bool)
        sums = [self._read(name, "f32").reshape(-1, 32) for name in before]
        for number, name in enumerate(out):
            value = product_[:, row + 8 * (number // 2), pair + number % 2] + sums[number]
            self._write(name, value.astype(numpy.float32).reshape(-1), active)


def _statements(text: str) -> Iterator[tuple[str, str, list[str]]]:
    """Guard, instruction and operands of each."""
    body = text[text.index(".reqntid") :]
    body = body[body.index("{") + 1 : body.index("$L__func_end")]
    body = re.sub(r"//[^\n]*|/\*.*?\*/", "", body)
    body = re.sub(r"^\s*\.loc[^\n]*$|^\s*\$L__tmp\w+:", "", body, flags=re.M)
    body = re.sub(r"^\s*(\$\w+):", r"\1;", body, flags=re.M)
    for statement in body.split(";"):
        statement = re.sub(r"^[\s{}]+", "", statement).strip()
        if not statement or statement.startswith("."):
            continue
        guard, opcode, rest = re.fullmatch(r"(@!?%p\d+\s+)?([\w.:$]+)\s*(.*)", statement, flags=re.S).groups()  # type: ignore[union-attr]
        operands = [each.strip() for each in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*", rest)]
        yield (guard or "").strip(), opcode, operands


def _names(operand: str) -> list[str]:
    return [name.strip() for name in operand.strip("{} ").split(",")]


def _parameter(value: int | float) -> Any:
    if isinstance(value, float):
        return numpy.uint64(struct.unpack("<I", struct.pack("<f", value))[0])
    return numpy.uint64(value & (1 << 64) - 1)


def _bytes_of(tensor: torch.Tensor) -> Any:
    return tensor.view(-1).view(torch.uint8).numpy()


@contextmanager
def kernels_on_a_cpu() -> Iterator[None]:
    """Within, kernels are compiled for a Hopper GPU and run by this machine on tensors of the CPU, all contiguous and
    given in the kernel's order. For a process of its own, where Triton interprets nothing."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    target = GPUTarget("cuda", 90, 32)
    driver.set_active(
        SimpleNamespace(
            get_current_device=lambda: 0, get_current_stream=lambda device: 0, get_current_target=lambda: target
        )
    )
    kernels: Any = JITFunction
    compile_only = kernels.run

    def run(kernel: Any, *arguments: Any, grid: Sequence[int], warmup: bool, **options: Any) -> None:
        compiled = compile_only(kernel, *arguments, grid=grid, warmup=True, **options)
        signature = compiled.src.signature
        given = [
            value for name, value in zip(kernel.arg_names, arguments, strict=True) if signature[name] != "constexpr"
        ]
        tensors = [value for value in given if isinstance(value, torch.Tensor)]
        parameters = [value.data_ptr() if isinstance(value, torch.Tensor) else value for value in given]
        PtxMachine(compiled.asm["ptx"], compiled.metadata.num_warps, tensors, [*parameters, 0, 0]).run(grid)

    kernels.run = run
    try:
        yield
    finally:
        kernels.run = compile_only
