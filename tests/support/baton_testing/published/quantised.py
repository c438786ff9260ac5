"""All published checkpoints with quantised weights, by their names."""

from __future__ import annotations

from typing import Final

from baton_testing.published.auto_round import AUTO_ROUND
from baton_testing.published.awq import AWQ
from baton_testing.published.checkpoint import Quantised
from baton_testing.published.compressed import COMPRESSED
from baton_testing.published.fp8 import FP8
from baton_testing.published.gptq import GPTQ
from baton_testing.published.other import OTHER

QUANTISED: Final[dict[str, Quantised]] = {**FP8, **COMPRESSED, **GPTQ, **AWQ, **AUTO_ROUND, **OTHER}
