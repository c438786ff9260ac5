"""A small language for vector kernels: Python expressions over typed values, written out as LLVM's intermediate text.

    k = Kernel("double", x="*float", count="i64")
    with k.loop(0, k["count"], LANES) as at:
        (k.pointer("x") + at).store((k.pointer("x") + at).load(LANES) * 2.0)

Types have LLVM's names; a Python number takes the type of what it meets. Memory is the only state: a `Variable` is a
stack slot, which LLVM keeps in a register.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

LANES: Final = 16
"""Floats of a vector: a register of AVX-512."""

I64: Final = "i64"
F32: Final = "float"
VECTOR: Final = "<16 x float>"
MASK: Final = "<16 x i1>"
_POINTER: Final = "ptr"
_ALIGNMENT: Final = {"i64": 8, "float": 4, "i32": 4, "i16": 2, "i8": 1}


class Value:
    """A value of a kernel; operators write an instruction. Division and remainder are for numbers from 0 up."""

    __slots__ = ("kernel", "name", "type")

    def __init__(self, kernel: Kernel, type_: str, name: str) -> None:
        self.kernel, self.type, self.name = kernel, type_, name

    def __add__(self, other: Value | float) -> Value:
        return self.kernel.operation("add", self, other)

    def __sub__(self, other: Value | float) -> Value:
        return self.kernel.operation("sub", self, other)

    def __mul__(self, other: Value | float) -> Value:
        return self.kernel.operation("mul", self, other)

    def __truediv__(self, other: Value) -> Value:
        return self.kernel.operation("div", self, other)

    def __floordiv__(self, other: int) -> Value:
        return self.kernel.operation("udiv", self, other)

    def __mod__(self, other: int) -> Value:
        return self.kernel.operation("urem", self, other)

    def __lshift__(self, other: int) -> Value:
        return self.kernel.operation("shl", self, other)

    def __and__(self, other: Value) -> Value:
        return self.kernel.operation("and", self, other)

    def __or__(self, other: Value) -> Value:
        return self.kernel.operation("or", self, other)

    def __lt__(self, other: Value | float) -> Value:
        return self.kernel.compare("lt", self, other)

    def __gt__(self, other: Value | float) -> Value:
        return self.kernel.compare("gt", self, other)

    def __ge__(self, other: Value | float) -> Value:
        return self.kernel.compare("ge", self, other)

    def equals(self, other: float) -> Value:
        return self.kernel.compare("eq", self, other)

    def to(self, conversion: str, type_: str) -> Value:
        """bitcast, trunc, sext, zext, sitofp, fptosi."""
        return self.kernel.emit(type_, f"{conversion} {self.type} {self.name} to {type_}")


class Pointer:
    """The address of elements of one type; moves by elements."""

    __slots__ = ("address", "of")

    def __init__(self, address: Value, of: str) -> None:
        self.address, self.of = address, of

    def __add__(self, elements: Value | int) -> Pointer:
        k = self.address.kernel
        index = k.constant(elements, I64)
        return Pointer(k.emit(_POINTER, f"getelementptr {self.of}, ptr {self.address.name}, i64 {index.name}"), self.of)

    def load(self, lanes: int = 1) -> Value:
        type_ = self.of if lanes == 1 else f"<{lanes} x {self.of}>"
        return self.address.kernel.emit(type_, f"load {type_}, ptr {self.address.name}, align {_ALIGNMENT[self.of]}")

    def store(self, value: Value) -> None:
        k = self.address.kernel
        k.line(f"store {value.type} {value.name}, ptr {self.address.name}, align {_ALIGNMENT[self.of]}")

    def load_where(self, mask: Value) -> Value:
        """A vector with zeros where the mask is off, and nothing read there."""
        k = self.address.kernel
        return k.call(VECTOR, "llvm.masked.load.v16f32.p0", self.address, mask, k.constant(0.0, VECTOR))

    def store_where(self, mask: Value, value: Value) -> None:
        self.address.kernel.call("void", "llvm.masked.store.v16f32.p0", value, self.address, mask)


class Variable:
    __slots__ = ("_pointer", "_type")

    def __init__(self, pointer: Value, initial: Value) -> None:
        self._pointer, self._type = pointer, initial.type
        self.value = initial

    @property
    def value(self) -> Value:
        return self._pointer.kernel.emit(self._type, f"load {self._type}, ptr {self._pointer.name}")

    @value.setter
    def value(self, new: Value) -> None:
        self._pointer.kernel.line(f"store {self._type} {new.name}, ptr {self._pointer.name}")


class Kernel:
    """One function under construction; returns nothing. A parameter's kind is "i64", "float", or "*" and what it points
    to."""

    def __init__(self, name: str, **parameters: str) -> None:
        self.name, self.parameters = name, parameters
        self.declared: dict[str, str] = {}
        self._lines: list[str] = []
        self._stack: list[str] = []
        self._names = 0

    def __getitem__(self, parameter: str) -> Value:
        return Value(self, self.parameters[parameter], f"%{parameter}")

    def pointer(self, parameter: str) -> Pointer:
        return Pointer(Value(self, _POINTER, f"%{parameter}"), self.parameters[parameter].removeprefix("*"))

    def text(self) -> str:
        listed = ", ".join(
            f"ptr noalias %{name}" if kind.startswith("*") else f"{kind} %{name}"
            for name, kind in self.parameters.items()
        )
        lines = "\n".join(("entry:", *self._stack, "br label %start", "start:", *self._lines))
        return f"define void @{self.name}({listed}) #0 {{\n{lines}\nret void\n}}\n"

    def line(self, text: str) -> None:
        self._lines.append(text)

    def emit(self, type_: str, text: str) -> Value:
        value = Value(self, type_, f"%v{self._next()}")
        self.line(f"{value.name} = {text}")
        return value

    def call(self, type_: str, name: str, *arguments: Value, flags: str = "") -> Value:
        """A call of one of LLVM's intrinsics."""
        kinds = ", ".join(a.type for a in arguments)
        self.declared[name] = f"declare {type_} @{name}({kinds})"
        text = f"call {flags} {type_} @{name}({', '.join(f'{a.type} {a.name}' for a in arguments)})"
        if type_ != "void":
            return self.emit(type_, text)
        self.line(text)
        return Value(self, type_, "")

    # Values -----------------------------------------------------------------------------------------------------------

    def constant(self, value: Value | float, type_: str) -> Value:
        """The number as a constant of a type, in every lane; a value as it is."""
        if isinstance(value, Value):
            return value
        element = _element(type_)
        if element == F32:
            rounded = struct.unpack("f", struct.pack("f", value))[0]
            literal = f"0x{struct.unpack('Q', struct.pack('d', rounded))[0]:016X}"
        else:
            literal = str(int(value))
        return Value(self, type_, literal if element == type_ else f"splat ({element} {literal})")

    def operation(self, name: str, a: Value, b: Value | float) -> Value:
        written = f"f{name} contract" if F32 in a.type else name
        return self.emit(a.type, f"{written} {a.type} {a.name}, {self.constant(b, a.type).name}")

    def compare(self, relation: str, a: Value, b: Value | float) -> Value:
        signed = relation if relation == "eq" else f"s{relation}"
        written = f"fcmp o{relation}" if F32 in a.type else f"icmp {signed}"
        type_ = MASK if a.type.startswith("<") else "i1"
        return self.emit(type_, f"{written} {a.type} {a.name}, {self.constant(b, a.type).name}")

    def select(self, condition: Value, a: Value, b: Value | float) -> Value:
        other = self.constant(b, a.type)
        return self.emit(a.type, f"select {condition.type} {condition.name}, {a.type} {a.name}, {a.type} {other.name}")

    def least(self, a: Value, b: Value | int) -> Value:
        return self.select(a < b, a, b)

    def greatest(self, a: Value, b: Value | float) -> Value:
        return self.select(a > b, a, b)

    def splat(self, scalar: Value) -> Value:
        type_ = f"<{LANES} x {scalar.type}>"
        one = self.emit(type_, f"insertelement {type_} poison, {scalar.type} {scalar.name}, i64 0")
        return self.shuffle(one, one, [0] * LANES)

    def shuffle(self, a: Value, b: Value, places: Sequence[int]) -> Value:
        """Elements of a, counted on into b."""
        listed = ", ".join(f"i32 {place}" for place in places)
        return self.emit(
            f"<{len(places)} x {_element(a.type)}>",
            f"shufflevector {a.type} {a.name}, {b.type} {b.name}, <{len(places)} x i32> <{listed}>",
        )

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a · b + c of vectors, rounded once."""
        return self.call(VECTOR, "llvm.fma.v16f32", a, b, c)

    def reciprocal(self, x: Value) -> Value:
        """1 / x of a vector to about one unit in the last place: an estimate and one step of Newton's (a division of 16
        takes as long as 16 products). x and 1 / x normal numbers."""
        return self.emit(VECTOR, f"fdiv arcp ninf contract {VECTOR} {self.constant(1.0, VECTOR).name}, {x.name}")

    def root(self, value: Value) -> Value:
        return self.call(F32, "llvm.sqrt.f32", value)

    def total(self, vector: Value) -> Value:
        return self.call(F32, "llvm.vector.reduce.fadd.v16f32", self.constant(0.0, F32), vector, flags="reassoc")

    def maximum(self, vector: Value) -> Value:
        """Find the greatest of lanes without NaN: handling NaN would make it a chain of 15 scalar steps."""
        return self.call(F32, "llvm.vector.reduce.fmax.v16f32", vector, flags="nnan")

    def first_lanes(self, count: Value) -> Value:
        """The mask of the first `count` lanes: none from 0 down, all from LANES up; count fits 32 bits."""
        lanes = ", ".join(f"i32 {lane}" for lane in range(LANES))
        return self.emit(MASK, f"icmp slt <{LANES} x i32> <{lanes}>, {self.splat(count.to('trunc', 'i32')).name}")

    # Memory and control -----------------------------------------------------------------------------------------------

    def buffer(self, type_: str, count: int = 1) -> Pointer:
        """Elements on the stack."""
        name = f"%s{self._next()}"
        self._stack.append(f"{name} = alloca {type_}, i64 {count}, align 64")
        return Pointer(Value(self, _POINTER, name), type_)

    def variable(self, initial: Value) -> Variable:
        return Variable(self.buffer(initial.type).address, initial)

    @contextmanager
    def loop(self, start: Value | int, end: Value | int, step: Value | int = 1) -> Iterator[Value]:
        """for i in range(start, end, step), step > 0."""
        n = self._next()
        first, last, by = (self.constant(value, I64).name for value in (start, end, step))
        self._lines += [f"br label %before{n}", f"before{n}:", f"br label %head{n}", f"head{n}:"]
        self.line(f"%i{n} = phi i64 [ {first}, %before{n} ], [ %next{n}, %latch{n} ]")
        self.line(f"%more{n} = icmp slt i64 %i{n}, {last}")
        self._lines += [f"br i1 %more{n}, label %body{n}, label %done{n}", f"body{n}:"]
        yield Value(self, I64, f"%i{n}")
        self._lines += [f"br label %latch{n}", f"latch{n}:", f"%next{n} = add i64 %i{n}, {by}"]
        self._lines += [f"br label %head{n}", f"done{n}:"]

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        n = self._next()
        self._lines += [f"br i1 {condition.name}, label %yes{n}, label %end{n}", f"yes{n}:"]
        yield
        self._lines += [f"br label %end{n}", f"end{n}:"]

    def _next(self) -> int:
        self._names += 1
        return self._names


def _element(type_: str) -> str:
    return type_.rpartition("x ")[2].rstrip(">")
