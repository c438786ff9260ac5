"""Registers of a program's threads, and what PTX computes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy

Lanes = Any
"""uint64 [threads]: the bits of a register in each thread."""

WIDTH: Final = {"pred": 1, **{f"{kind}{bits}": bits for kind in "bsuf" for bits in (16, 32, 64)}}
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


class PtxRegisters:
    """Registers of one program of `threads` threads; `special` ones are the same in all of them."""

    def __init__(self, threads: int, special: dict[str, int]) -> None:
        self._threads = threads
        self._special = special
        self._held: dict[str, Lanes] = {}

    def read(self, operand: str, kind: str) -> Any:
        """A register's or a constant's value, of a type as instructions name it."""
        width = WIDTH[kind]
        bits = self.bits(operand) & numpy.uint64((1 << width) - 1)
        if kind in _FLOATS:
            return bits.astype(numpy.uint32).view(numpy.float32)
        if kind.startswith("s"):
            return bits.astype(f"u{width // 8}").view(f"i{width // 8}")
        return bits.astype(f"u{width // 8}") if width > 1 else bits

    def bits(self, operand: str) -> Lanes:
        if operand in self._held:
            return self._held[operand]
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

    def write(self, name: str, value: Any, active: Any) -> None:
        """Write a register in active threads; in the others it keeps its value."""
        value = numpy.asarray(value)
        if value.dtype == numpy.float32:
            value = value.view(numpy.uint32)
        if value.dtype.kind == "i":
            value = value.view(f"u{value.dtype.itemsize}")
        before = self._held.get(name, numpy.zeros(self._threads, numpy.uint64))
        self._held[name] = numpy.where(active, value.astype(numpy.uint64), before)

    def computed(self, parts: list[str], sources: list[str]) -> Any:  # noqa: C901 - one case for each instruction
        """Compute the result of an instruction without effects, given the parts of its name between dots."""
        name, kind = parts[0], parts[-1]
        if name == "mov":
            return self.bits(sources[0]) & numpy.uint64((1 << WIDTH[kind]) - 1)
        if name == "not":
            return ~self.read(sources[0], kind) & ((1 << WIDTH[kind]) - 1)
        if name == "cvt":
            if kind == "bf16":
                return of_bfloat16(self.bits(sources[0]))
            value = self.read(sources[0], kind)
            target = parts[-2]
            if target == "bf16":
                return bfloat16_bits(value)
            width = WIDTH[target] // 8
            return value.astype(f"i{width}" if kind.startswith("s") else f"u{width}")
        if name == "shfl":
            lane = numpy.arange(self._threads) ^ int(sources[1])
            return self.bits(sources[0])[lane]
        if name == "prmt":
            both = self.bits(sources[0]) | self.bits(sources[1]) << numpy.uint64(32)
            selector = int(sources[2], 0)
            taken = [both >> numpy.uint64(8 * (selector >> 4 * byte & 7)) & numpy.uint64(255) for byte in range(4)]
            return taken[0] | taken[1] << 8 | taken[2] << 16 | taken[3] << 24
        if name == "lop3":
            a, b, c = (self.bits(source) & numpy.uint64(0xFFFFFFFF) for source in sources[:3])
            table, total = int(sources[3], 0), numpy.zeros(self._threads, numpy.uint64)
            for number in range(8):
                if table >> number & 1:
                    total |= (a if number & 4 else ~a) & (b if number & 2 else ~b) & (c if number & 1 else ~c)
            return total & numpy.uint64(0xFFFFFFFF)
        if name == "bfe":
            start, count = int(sources[1]), int(sources[2])
            return self.bits(sources[0]) >> numpy.uint64(start) & numpy.uint64((1 << count) - 1)
        if name == "setp":
            return _SETP[parts[1]](self.read(sources[0], kind), self.read(sources[1], kind)).astype(numpy.uint64)
        if name == "selp":
            return numpy.where(self.bits(sources[2]) == 1, self.read(sources[0], kind), self.read(sources[1], kind))
        if name in ("shl", "shr"):
            value = self.read(sources[0], kind)
            count = numpy.minimum(self.read(sources[1], "u32"), 8 * value.dtype.itemsize - 1).astype(value.dtype)
            return value << count if name == "shl" else value >> count
        if name == "ex2":
            return numpy.exp2(self.read(sources[0], kind))
        if name == "div" and kind == "f32":
            return self.read(sources[0], kind) / self.read(sources[1], kind)
        if name == "div":
            one, other = self.read(sources[0], kind), self.read(sources[1], kind)
            return numpy.trunc(one / other).astype(one.dtype)
        if "wide" in parts:
            wide = "i8" if kind.startswith("s") else "u8"
            value = self.read(sources[0], kind).astype(wide) * self.read(sources[1], kind).astype(wide)
            return value if name == "mul" else value + self.bits(sources[2]).view(wide)
        if name in ("mad", "fma"):
            return self.read(sources[0], kind) * self.read(sources[1], kind) + self.read(sources[2], kind)
        return _TWO[name](self.read(sources[0], kind), self.read(sources[1], kind))
