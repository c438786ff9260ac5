"""Layers whose weights stay in the host's memory and come to the device just before they are used.

The device holds two places. While a layer computes in one, the next offloaded layer is copied into the other. The
layers are spread evenly, so that those between two offloaded ones hide the copy. A step takes at least as long as all
copies together: this pays for steps of many tokens, as on prefill workers (docs/engine.md#offloaded-layers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

PLACES: Final = 2
_ALIGNMENT: Final = 256
"""Bytes: what torch's own memory is aligned to, and the kernels count on 16."""

T = TypeVar("T")


def offloaded_numbers(layers: int, count: int) -> tuple[int, ...]:
    """Numbers of the offloaded layers, ascending. The last is never one: its K and V share memory with its Q.

    `count` is from 0 to layers - 1.
    """
    return tuple((number + 1) * (layers - 1) // count - 1 for number in range(count))


def tensors_of(held: object) -> Iterator[Tensor]:
    """Every tensor of a layer, through its dataclasses and tuples, always in the same order."""
    if isinstance(held, Tensor):
        yield held
    elif isinstance(held, tuple):
        for part in held:
            yield from tensors_of(part)
    elif is_dataclass(held) and not isinstance(held, type):
        for field in fields(held):
            yield from tensors_of(getattr(held, field.name))


def with_tensors(held: T, tensors: Iterator[Tensor]) -> T:
    """Rebuild the layer around other tensors, taken in the order of `tensors_of`."""
    return _rebuild(held, tensors)  # type: ignore[no-any-return]  # of the same type by construction


def _rebuild(held: Any, tensors: Iterator[Tensor]) -> Any:
    if isinstance(held, Tensor):
        return next(tensors)
    if isinstance(held, tuple):
        return tuple(_rebuild(part, tensors) for part in held)
    if is_dataclass(held) and not isinstance(held, type):
        return replace(held, **{field.name: _rebuild(getattr(held, field.name), tensors) for field in fields(held)})
    return held


@dataclass(frozen=True, slots=True)
class _Image:
    """The place of one tensor in its layer's bytes."""

    offset: int
    span: int
    """Elements from the first to the last."""
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def within(self, memory: Tensor) -> Tensor:
        """A view of a layer's bytes."""
        flat = memory[self.offset : self.offset + self.span * self.dtype.itemsize].view(self.dtype)
        return flat.as_strided(self.shape, self.strides)


def _images(tensors: list[Tensor]) -> tuple[tuple[_Image, ...], int]:
    """Place the tensors one after the other. Returns their places and the bytes that they take."""
    images, offset = list[_Image](), 0
    for tensor in tensors:
        span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        images.append(_Image(offset, span, tensor.dtype, tuple(tensor.shape), tuple(tensor.stride())))
        offset += -(-span * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT
    return tuple(images), offset


class LayerRing:
    """The offloaded layers of one model, in the order in which a pass uses them.

    `take` each layer, then call `place` once. A pass calls `enter` before and `leave` after each layer.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_cuda = device.type == "cuda"
        self._host: list[Tensor] = []
        self._numbers: dict[int, int] = {}
        """Each layer's turn in the ring."""
        self._places: tuple[Tensor, ...] = ()
        self._holds: list[int | None] = [None] * PLACES
        """For each place, the turn whose weights it holds or is getting."""
        self._stream = torch.cuda.Stream(device) if self._is_cuda else None  # type: ignore[no-untyped-call]
        self._arrived = [_event() for _ in range(PLACES)] if self._is_cuda else []
        self._used = [_event() for _ in range(PLACES)] if self._is_cuda else []

    @property
    def host_bytes(self) -> int:
        """Memory of the host that the layers take."""
        return sum(len(memory) for memory in self._host)

    def take(self, number: int, layer: T) -> T:
        """Copy the layer's weights to the host's memory. Returns the layer around them; the device's can be freed."""
        tensors = list(tensors_of(layer))
        images, size = _images(tensors)
        memory = torch.empty(size, dtype=torch.uint8, pin_memory=self._is_cuda)
        hosted = [image.within(memory) for image in images]
        for copy, tensor in zip(hosted, tensors, strict=True):
            copy.copy_(tensor)
        self._numbers[number] = len(self._host)
        self._host.append(memory)
        return with_tensors(layer, iter(hosted))

    def place(self, layers: tuple[T, ...]) -> tuple[T, ...]:
        """Make the layers that were taken read the device's places. `layers` are all layers of the model."""
        size = max(len(memory) for memory in self._host)
        self._places = tuple(torch.empty(size, dtype=torch.uint8, device=self._device) for _ in range(PLACES))

        def on_device(number: int, layer: T) -> T:
            images, _ = _images(list(tensors_of(layer)))
            memory = self._places[self._numbers[number] % PLACES]
            return with_tensors(layer, iter([image.within(memory) for image in images]))

        return tuple(
            on_device(number, layer) if number in self._numbers else layer for number, layer in enumerate(layers)
        )

    def enter(self, number: int) -> None:
        """Make sure that work launched from now on finds the layer's weights."""
        turn = self._numbers.get(number)
        if turn is None:
            return
        place = turn % PLACES
        if self._holds[place] != turn:  # the first pass, or the pass before ended early
            self._load(turn)
        if self._is_cuda:
            torch.cuda.current_stream(self._device).wait_event(self._arrived[place])

    def leave(self, number: int) -> None:
        """Start copying the next layer of this place, since everything that reads the layer's weights is launched."""
        turn = self._numbers.get(number)
        if turn is None:
            return
        following = turn + PLACES
        self._load(following if following < len(self._host) else turn % PLACES)

    def _load(self, turn: int) -> None:
        place, memory = turn % PLACES, self._host[turn]
        if self._holds[place] == turn:
            return
        self._holds[place] = turn
        target = self._places[place][: len(memory)]
        if self._stream is None:
            target.copy_(memory)
            return
        self._used[place].record(torch.cuda.current_stream(self._device))
        self._stream.wait_event(self._used[place])
        with torch.cuda.stream(self._stream):
            target.copy_(memory, non_blocking=True)
            self._arrived[place].record(self._stream)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]


def assemble_layers(
    count: int, offloaded: int, device: torch.device, build: Callable[[int], T]
) -> tuple[tuple[T, ...], LayerRing | None]:
    """Build `count` layers, of which `offloaded` stay in the host's memory.

    Each layer is built after the one before it was moved there, so that the device never holds them all.

    Raises ValueError when no layer would stay on the device.
    """
    if not offloaded:
        return tuple(build(number) for number in range(count)), None
    if not 0 < offloaded < count:
        raise ValueError(f"{offloaded} offloaded layers: this model has {count}, of which the last stays")
    ring, taken = LayerRing(device), set(offloaded_numbers(count, offloaded))
    layers = []
    for number in range(count):
        layer = build(number)
        layers.append(ring.take(number, layer) if number in taken else layer)
    return ring.place(tuple(layers)), ring
