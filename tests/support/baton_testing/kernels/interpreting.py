"""A faster interpreter for Triton kernels: repeated work without effect, half of its time, is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import numpy
import pytest


class Patched:
    """The interpreter's `_patch_lang`, which gives functions of `triton.language` their interpreted bodies.

    It looks through all of them at each call between two jitted functions, and finds none that has its own body still.
    Here it looks once in a launch, for each module that a function names.
    """

    def __init__(self, patch: Callable[[Any], Any], modules: tuple[object, ...]) -> None:
        self._patch = patch
        self._named = cache(lambda function: {i for i, m in enumerate(modules) if m in _named(function)})
        self._interpreted: set[int] = set()

    def __call__(self, function: Any) -> Any:
        """Patch, and return what the launch restores at its end. Calls within it restore nothing."""
        named = self._named(function)
        if named and named <= self._interpreted:
            return None
        self._interpreted |= named
        scope = self._patch(function)
        restore = scope.restore

        def restored() -> None:
            self._interpreted.clear()
            restore()

        scope.restore = restored
        return scope


def _named(function: Any) -> list[object]:
    return [value for value in function.__globals__.values() if type(value) is type(numpy)]


@contextmanager
def interpreted_once() -> Iterator[None]:
    """Within, kernels are interpreted as ever, and compute the same.

    A sum, difference or product of integers is computed a second time, in 64 bits, for an assertion that is made with
    `debug` alone, and the interpreter never has that.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    assert not builder.options.debug, "overflows are asserted on: leave them sanitised"
    of_scalar = cache(interpreter._get_np_dtype)  # it builds its table anew each time

    def numpy_dtype(kind: Any) -> Any:
        element = kind.element_ty if isinstance(kind, tl.block_type) else kind
        return numpy.dtype(numpy.uint64) if isinstance(element, tl.pointer_type) else of_scalar(element)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", Patched(interpreter._patch_lang, (tl, tl.core)))
        patch.setattr(interpreter, "_get_np_dtype", numpy_dtype)
        patch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))
        yield
