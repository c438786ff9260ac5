"""A linked worker as routing sees it: what it reported last, and what was sent to it since."""

from __future__ import annotations

import msgspec

from baton_gateway.workers.prompt_costs import PromptCost
from baton_wire.messages.encoding import EncodingLimits
from baton_wire.messages.values import Address, PairFingerprint, Role


class WorkerView(msgspec.Struct, frozen=True):
    """A linked worker as routing sees it."""

    epoch: bytes
    role: Role
    served_name: str
    fingerprint: PairFingerprint
    pair_address: Address | None
    """Where prefill workers reach it; a decode worker has one."""
    max_context_tokens: int
    max_choices: int
    block_tokens: int
    blocks_total: int
    blocks_free: int | None
    """None: not reported yet."""
    blocks_empty: int | None = None
    """Free blocks with nothing cached in them; None: not reported yet."""
    load_sequences: int = 0
    """Running, waiting, and sent since the last report."""
    load_tokens: int = 0
    """Prompt tokens still to be computed or received."""
    prompt_tokens: int = 0
    """Prompt tokens still to be computed by this worker."""
    running: int = 0
    """Sequences at the last report."""
    waiting: int = 0
    """Requests that wait for slots or blocks: those of the last report, and those sent since that found no slot."""
    max_sequences: int = 1
    rows: int = 0
    """Sequences that it decoded in its last step."""
    keeps_answers: bool = False
    """A prefill worker that may decode prompts that it computed (prefill-local)."""
    encoding: EncodingLimits | None = None
    """The results that the worker computes of prompts besides answers; None: nothing."""
    is_draining: bool = False
    is_suspect: bool = False
    token_s: float | None = None
    """Seconds per prompt token; None: no prompt step was seen."""
    more_token_s: float | None = None
    """Seconds that one more token adds to a step."""
    step_s: float = 0.0
    rows_s: float | None = None
    """Seconds of a decode worker's step without prompts; None: not seen."""
    least_rows_s: float | None = None
    """The shortest such step that was seen."""
    kv_token_s: float | None = None
    """Seconds that such a step takes for each KV token that it reads; None: not known."""
    fixed_s: float | None = None
    """Seconds of such a step without KV; None: not known."""
    piece_token_s: float | None = None
    """Seconds that a prompt token adds to such a step; None: not seen."""
    piece_fixed_s: float = 0.0
    """Seconds that a piece of a prompt adds to such a step besides, whatever its size."""
    recent_step_s: float | None = None
    """Mean seconds of its steps with rows in the last seconds, pieces included; None: there were none."""
    prompt_cost: PromptCost | None = None
    """Cost of its prompts, by their tokens and contexts; None: not known."""
    usual_held_tokens: int = 0
    """As `held_tokens`, on average over the last seconds."""
    coming_tokens_s: float = 0.0
    """Prompt tokens a second that arrive to be computed."""
    gateways: int = 1
    """Gateway processes that send to it, as it reported."""
    lately_tokens_s: float = 0.0
    """Prompt tokens a second that it computed in the last minute."""
    seed: int = 0
    """A number of its own, for draws."""
    is_stuck: bool = False
    """Its step takes much longer than its steps do: it gets prompts only where there is no other."""

    @property
    def held_tokens(self) -> int:
        """Tokens of KV that its sequences need; cached ones without a sequence are left out. 0 until it reports."""
        return 0 if self.blocks_free is None else (self.blocks_total - self.blocks_free) * self.block_tokens

    def displaced_tokens(self, new_tokens: int) -> int:
        """Cached tokens that must go when the worker takes this many tokens that no worker has."""
        return 0 if self.blocks_empty is None else max(0, new_tokens - self.blocks_empty * self.block_tokens)

    @property
    def generates(self) -> bool:
        """Prompts may be answered from it."""
        return self.encoding is None or self.encoding.generates

    @property
    def is_usable(self) -> bool:
        """New runs may go to it."""
        return not self.is_draining and not self.is_suspect
