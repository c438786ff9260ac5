"""All published checkpoints without quantised weights, by their names.

They are field by field as their makers wrote them, from public sources. Fields that no reader of a model looks at
(initialisers, dropouts, versions) are left out, and long lists are shortened: `{layer}` is replaced by each layer's
number.
"""

from __future__ import annotations

from typing import Final

from baton_testing.published.checkpoint import Published
from baton_testing.published.gemma import GEMMA
from baton_testing.published.glm import GLM
from baton_testing.published.gpt_oss import GPT_OSS
from baton_testing.published.llama import LLAMA
from baton_testing.published.mistral import MISTRAL
from baton_testing.published.phi import PHI
from baton_testing.published.qwen import QWEN

PUBLISHED: Final[dict[str, Published]] = {**LLAMA, **MISTRAL, **QWEN, **GPT_OSS, **GEMMA, **PHI, **GLM}
