"""A new message or field is a new wire version. The messages of each version are listed in `wire_versions/`.

After a change: raise `WIRE_VERSION`, run this module with `BATON_WRITE_WIRE=1`, commit the new page next to the old.
Names on a page are for readers: frames are arrays, so only numbers, order and types count.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import msgspec
import msgspec.inspect as mi

from baton_kv_transfer.transports import tcp
from baton_wire import handshake
from baton_wire.messages import gateway_link, operator_link, pair_link
from baton_wire.messages.values import POOL_ROLES, WIRE_VERSION, PairFingerprint, Role
from baton_wire.session import FRAME_MAC_BYTES, HASHED_FROM_BYTES

PAGES = Path(__file__).parent / "wire_versions"
UNIONS = {
    "worker to gateway": gateway_link.ToGateway,
    "gateway to worker": gateway_link.ToWorker,
    "prefill and decode worker": pair_link.PairMessage,
    "gateway to operator": operator_link.ToOperator,
    "operator to gateway": operator_link.ToGateway,
}
BOUNDS = ("gt", "ge", "lt", "le", "min_length", "max_length", "pattern")


def page() -> str:
    """Everything that this version says: the handshake's frames, what surrounds others, then every message."""
    lines = [f"handshake {name}: {getattr(handshake, name).format}" for name in ("_OFFER", "_PROOF")]
    lines += [
        f"frame MAC: {FRAME_MAC_BYTES} bytes, of the SHA-256 from {HASHED_FROM_BYTES} on",
        *(f"tcp {name}: {getattr(tcp, name).format}" for name in ("PUT", "ACK")),
    ]
    for link, union in UNIONS.items():
        lines += ["", link]
        for message in sorted((mi.type_info(cls) for cls in get_args(union)), key=_number):
            assert isinstance(message, mi.StructType)
            lines += [f"{message.tag} {message.cls.__name__}", *_fields(message, 1)]
    return "\n".join(lines) + "\n"


def _number(message: mi.Type) -> int:
    assert isinstance(message, mi.StructType)
    assert isinstance(message.tag, int)
    assert message.array_like
    return message.tag


def _fields(struct: mi.StructType, depth: int) -> Iterator[str]:
    for field in struct.fields:
        inner = [kind for kind in _structs(field.type) if not kind.tag]
        yield f"{'  ' * depth}{field.encode_name}: {shown(field.type)}"
        for member in inner:
            yield from _fields(member, depth + 1)


def _structs(kind: mi.Type) -> Iterator[mi.StructType]:
    match kind:
        case mi.StructType():
            yield kind
        case mi.UnionType(types=types) | mi.TupleType(item_types=types):
            for member in types:
                yield from _structs(member)
        case mi.VarTupleType(item_type=item) | mi.ListType(item_type=item):
            yield from _structs(item)


def shown(kind: mi.Type) -> str:
    """A type with its bounds; a struct is `fields`, which follow."""
    match kind:
        case mi.StructType():
            return "fields"
        case mi.EnumType(cls=cls):
            members = POOL_ROLES if cls is Role else cls  # who says hello is a worker: messages refuse other roles
            return f"one of {', '.join(str(member.value) for member in members)}"
        case mi.UnionType(types=types):
            return " | ".join(sorted(shown(member) for member in types))
        case mi.VarTupleType(item_type=item) | mi.ListType(item_type=item):
            return f"[{shown(item)}]{_bounds(kind)}"
        case mi.TupleType(item_types=items):
            return f"({', '.join(shown(item) for item in items)})"
        case _:
            return type(kind).__name__.removesuffix("Type").lower() + _bounds(kind)


def _bounds(kind: mi.Type) -> str:
    words = [f"{name}={value}" for name in BOUNDS if (value := getattr(kind, name, None)) is not None]
    return f"<{' '.join(words)}>" if words else ""


def without_names(text: str) -> list[str]:
    return [re.sub(r"^( *)\w+(?=:)|(?<=^\d) \w+$|(?<=^\d\d) \w+$", r"\1", line) for line in text.splitlines()]


def test_what_is_said_is_what_this_version_says() -> None:
    file = PAGES / f"v{WIRE_VERSION}.txt"
    if os.environ.get("BATON_WRITE_WIRE") and not file.exists():
        file.write_text(page())
    assert without_names(page()) == without_names(file.read_text())


def test_every_version_has_its_page() -> None:
    assert {path.name for path in PAGES.iterdir()} == {f"v{number}.txt" for number in range(1, WIRE_VERSION + 1)}


def test_a_changed_field_shows_and_a_changed_name_does_not() -> None:
    class Inner(msgspec.Struct, array_like=True):
        count: int

    class Renamed(msgspec.Struct, array_like=True):
        amount: int

    class Longer(Inner):
        more: int = 0

    def lines(inner: type) -> list[str]:
        info = mi.type_info(msgspec.defstruct("Outer", [("inner", inner)], array_like=True, tag=1))
        assert isinstance(info, mi.StructType)
        return without_names("\n".join(_fields(info, 1)))

    assert lines(Inner) == lines(Renamed)
    assert lines(Inner) != lines(Longer)


def test_a_pair_of_unequal_versions_never_exchanges_kv() -> None:
    assert "wire_version" in PairFingerprint.__struct_fields__
