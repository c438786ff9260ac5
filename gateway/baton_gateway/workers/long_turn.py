"""A turn with a long context at a pair of workers, as `context_placement` judges it. Pure."""

from __future__ import annotations

from typing import NamedTuple

from baton_gateway.workers.prompt_costs import PromptCost
from baton_gateway.workers.worker_view import WorkerView
from baton_wire.rules.context_placement import ContextSide
from baton_wire.rules.prompt_placement import PieceCost, SeenPieces, piece_cost


class LongTurn(NamedTuple):
    """A turn that may go to either worker of a pair."""

    tokens: int
    """Tokens of its prompt, with the context before it."""
    prefill_missing: int
    decode_missing: int
    """Tokens that each worker would have to compute."""
    waiting: int
    """Prompts that wait at the gateway for prefill workers and are still in time."""
    may_be_kept: bool
    """The prefill worker may decode its answer."""

    def own_s(self, prefill: WorkerView, decode: WorkerView) -> float | None:
        """Seconds of a step that read its context; None: not known."""
        kv_token_s = prefill.kv_token_s if decode.kv_token_s is None else decode.kv_token_s
        return None if kv_token_s is None else self.tokens * kv_token_s

    def sides(self, prefill: WorkerView, decode: WorkerView) -> tuple[ContextSide, ContextSide] | None:
        """The load that it meets at the prefill and at the decode worker; None: costs are unknown."""
        kv_token_s = prefill.kv_token_s if decode.kv_token_s is None else decode.kv_token_s
        fixed_s = prefill.fixed_s if decode.fixed_s is None else decode.fixed_s
        if kv_token_s is None or fixed_s is None or not prefill.more_token_s:
            return None
        cost = prefill.prompt_cost or decode.prompt_cost
        # Rows that share the KV of a common beginning hold it once, and each of them reads it.
        running_s = None if decode.rows_s is None or not decode.rows else max(0.0, decode.rows_s - fixed_s)
        promised_s = max(decode.held_tokens * kv_token_s, running_s or 0.0)
        decode_rows_s = fixed_s + promised_s
        prefill_rows_s = fixed_s if not prefill.rows or prefill.rows_s is None else prefill.rows_s
        decode_piece = _view_piece_cost(decode, prefill, prefill, decode_rows_s)
        prefill_piece = _view_piece_cost(prefill, decode, prefill, prefill_rows_s)
        if decode_piece is None or prefill_piece is None or not decode_piece.token_s:
            return None
        decode_side = ContextSide(
            sequences=decode.load_sequences,
            rows_s=decode_rows_s,
            running_s=running_s,
            promised_s=promised_s,
            usual_rows_s=fixed_s + decode.usual_held_tokens * kv_token_s,
            token_s=decode_piece.token_s,
            piece_fixed_s=decode_piece.fixed_s,
            knows_pieces=decode_piece.is_known,
            recent_step_s=decode.recent_step_s,
            queued_tokens=decode.prompt_tokens,
            missing_tokens=self.decode_missing,
            own_token_s=own_token_s(cost, self.decode_missing, self.tokens, decode_piece.token_s),
            coming_tokens_s=decode.coming_tokens_s,
            has_slot=decode.load_sequences < decode.max_sequences,
        )
        prefill_token_s = prefill.more_token_s if cost is None else cost.usual_token_s
        prefill_side = ContextSide(
            sequences=prefill.rows,
            rows_s=prefill_rows_s,
            token_s=prefill_token_s,
            piece_fixed_s=prefill_piece.fixed_s,
            knows_pieces=prefill_piece.is_known,
            recent_step_s=prefill.recent_step_s,
            queued_tokens=prefill.load_tokens,
            missing_tokens=self.prefill_missing,
            own_token_s=own_token_s(cost, self.prefill_missing, self.tokens, prefill_token_s),
            coming_tokens_s=prefill.coming_tokens_s,
            has_slot=self.may_be_kept,
            waiting=self.waiting,
        )
        return prefill_side, decode_side


def own_token_s(cost: PromptCost | None, missing: int, tokens: int, usual_s: float) -> float:
    """Seconds of each of a prompt's `missing` tokens, attention to the context of `tokens` included."""
    return usual_s if cost is None else cost.mean_token_s(missing, tokens - missing)


def _view_piece_cost(worker: WorkerView, other: WorkerView, prefill: WorkerView, rows_s: float) -> PieceCost | None:
    """Cost of a piece next to rows that take the worker `rows_s`, by its own steps, those of the `other` worker of its
    pair, or those of the pair's prefill worker without rows."""
    alone_fixed_s = None if prefill.prompt_cost is None else prefill.prompt_cost.fixed_s
    seen, elsewhere = (SeenPieces(one.piece_token_s, one.piece_fixed_s) for one in (worker, other))
    return piece_cost(seen, rows_s, prefill.more_token_s, alone_fixed_s, elsewhere)
