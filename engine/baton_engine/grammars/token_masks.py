"""The masks of one draw as the sampler applies them: the tokens that each constrained row may take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baton_engine.memory.host_memory import on_device
from baton_kernels.sampling.token_mask import forbid_tokens, forbidding


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """Tensors of the host, which serve many draws. Rows of the draw that are not named may take any token."""

    rows: Tensor
    """[R] int64, ascending: the constrained rows. Each of them may take at least one token."""
    allowed: Tensor
    """[R, W] int32: bits as in `baton_kernels.sampling.token_mask`."""
    forbid_on_host: Callable[[Tensor], None]
    """`forbid_tokens` for float32 logits of the host."""

    @staticmethod
    def of(rows: npt.NDArray[np.int64], allowed: npt.NDArray[np.uint32]) -> TokenMasks:
        """Masks over the memory of `rows` [R] and `allowed` [R, W]: later changes of the arrays are seen."""
        row_tensor, masks = torch.from_numpy(rows), torch.from_numpy(allowed.view(np.int32))
        return TokenMasks(row_tensor, masks, forbidding(row_tensor, masks))

    def forbid(self, logits: Tensor) -> None:
        """Set the logits of forbidden tokens to -inf, in place. Logits of a CPU must be float32."""
        if logits.is_cuda:
            forbid_tokens(logits, on_device(self.rows, logits.device), on_device(self.allowed, logits.device))
        else:
            self.forbid_on_host(logits)
