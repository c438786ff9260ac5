"""The head of a stage that has none: the last stage of a pipeline alone computes logits."""

from __future__ import annotations

from typing import NoReturn

from torch import Tensor


class AbsentHead:
    """Implements `Projection` for a decoder that is never asked for logits."""

    def __call__(self, x: Tensor) -> NoReturn:
        raise RuntimeError("logits of a stage that is not the last one")

    def add_to(self, total: Tensor, x: Tensor) -> NoReturn:
        raise RuntimeError("logits of a stage that is not the last one")
