"""KV whose decode worker failed goes to another one: a new attempt of the request, and nothing is computed again.

A pure machine around `PrefillHandovers` or `PrefillRanks`. To the engine a request keeps the key under which it was
opened; towards decode workers and the gateway each hand-over of its KV has an attempt of its own. When a hand-over ends
for the decode worker's sake, its release is held back for `kept_s`, and a `retargeted` begins the next with what is
computed already.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from baton_kv_transfer.grant import DecodePeer
from baton_kv_transfer.handover import HandoverKey, TransferConfig
from baton_kv_transfer.prefill.machine import PrefillHandovers
from baton_kv_transfer.prefill.ranks import PrefillRanks
from baton_kv_transfer.prefill.records import Granted, PrefillAction, PrefillStats, PromptProgress, Release, Report
from baton_wire.messages.pair_link import FirstToken, PairMessage
from baton_wire.messages.values import Reason

DECODE_FAILED = frozenset(
    {Reason.PEER_LOST, Reason.NO_CAPACITY, Reason.DRAINING, Reason.UNKNOWN_REQUEST, Reason.INTERNAL}
)
"""Reasons for which the same KV may do well elsewhere."""


@dataclass(frozen=True, slots=True)
class Target:
    """The next attempt and the epoch of the decode worker that it goes to."""

    key: HandoverKey
    peer: bytes


@dataclass(slots=True)
class HeldPrompt:
    """A request of this prefill worker, through all its attempts."""

    key: HandoverKey
    current: HandoverKey
    total_tokens: int
    deadline_s: float
    following: Target | None = None
    """Where the KV goes once the attempt under way has ended."""
    kept_until_s: float | None = None
    progress: PromptProgress = field(default_factory=PromptProgress)
    """Progress of kept KV."""
    is_cancelled: bool = False


class PrefillKeeper:
    """All requests of one prefill worker. The events of the engine name requests as they were opened."""

    def __init__(self, handovers: PrefillHandovers | PrefillRanks, config: TransferConfig) -> None:
        self._inner = handovers
        self._config = config
        self._prompts: dict[HandoverKey, HeldPrompt] = {}
        self._opened_as: dict[HandoverKey, HandoverKey] = {}

    # The engine and the gateway --------------------------------------------------------------------------------------

    def opened(
        self, key: HandoverKey, peer: bytes, total_tokens: int, deadline_s: float, now: float
    ) -> list[PrefillAction]:
        if key not in self._prompts:
            self._prompts[key] = HeldPrompt(key, key, total_tokens, deadline_s)
            self._opened_as[key] = key
        attempt = self._prompts[key].current
        return self._outer(self._inner.opened(attempt, peer, total_tokens, deadline_s, now), now)

    def retargeted(self, key: HandoverKey, target: Target, deadline_s: float, now: float) -> list[PrefillAction]:
        """The gateway wants the KV of `key` to go elsewhere. Unknown, or over: reported."""
        prompt = self._prompts.get(key)
        if prompt is None or prompt.is_cancelled:
            return [Report(key, Reason.UNKNOWN_REQUEST, "no KV is kept for this request", target.key.attempt)]
        prompt.following, prompt.deadline_s = target, deadline_s
        if prompt.kept_until_s is not None:
            return self._begin(prompt, target, now)
        detail = "the KV goes to another decode worker"
        return self._outer(self._inner.cancelled(prompt.current, Reason.CANCELLED, detail, now), now)

    def cancelled(self, key: HandoverKey, reason: Reason, detail: str, now: float) -> list[PrefillAction]:
        prompt = self._prompts.get(key)
        if prompt is None:
            return self._inner.cancelled(key, reason, detail, now)
        prompt.is_cancelled, prompt.following = True, None
        if prompt.kept_until_s is not None:
            return [self._let_go(prompt, reason)]
        return self._outer(self._inner.cancelled(prompt.current, reason, detail, now), now)

    def computed(self, key: HandoverKey, tokens: int, blocks: tuple[int, ...], now: float) -> list[PrefillAction]:
        prompt = self._prompts.get(key)
        if prompt is not None and prompt.kept_until_s is not None:
            prompt.progress = replace(prompt.progress, computed=(tokens, blocks))
            return []
        return self._outer(self._inner.computed(self._current(key), tokens, blocks, now), now)

    def computing(
        self, key: HandoverKey, tokens: int, layers: int, blocks: tuple[int, ...], now: float
    ) -> list[PrefillAction]:
        """`key` also names the rank that reports (`leg_key`)."""
        attempt = replace(self._current(key.without_rank), rank=key.rank)
        return self._outer(self._inner.computing(attempt, tokens, layers, blocks, now), now)

    def first_tokens(self, key: HandoverKey, tokens: tuple[FirstToken, ...], now: float) -> list[PrefillAction]:
        prompt = self._prompts.get(key)
        if prompt is not None and prompt.kept_until_s is not None:
            if all(token.finish is not None for token in tokens):
                return [self._let_go(prompt, Reason.FINISHED)]
            prompt.progress = replace(prompt.progress, first_tokens=tokens)
            return []
        return self._outer(self._inner.first_tokens(self._current(key), tokens, now), now)

    # Links, writes, time: about attempts, as they are ----------------------------------------------------------------

    def put_done(self, key: HandoverKey, put: int, checksums: bytes, now: float) -> list[PrefillAction]:
        return self._outer(self._inner.put_done(key, put, checksums, now), now)

    def put_failed(self, key: HandoverKey, put: int, reason: Reason, detail: str, now: float) -> list[PrefillAction]:
        return self._outer(self._inner.put_failed(key, put, reason, detail, now), now)

    def link_up(self, peer: bytes, facts: DecodePeer, now: float) -> list[PrefillAction]:
        return self._outer(self._inner.link_up(peer, facts, now), now)

    def link_down(self, peer: bytes, reason: Reason, detail: str, now: float) -> list[PrefillAction]:
        return self._outer(self._inner.link_down(peer, reason, detail, now), now)

    def message(self, peer: bytes, message: PairMessage, now: float) -> list[PrefillAction]:
        return self._outer(self._inner.message(peer, message, now), now)

    def spoilt(self, peer: bytes, request: bytes, attempt: int, detail: str, now: float) -> list[PrefillAction]:
        return self._outer(self._inner.spoilt(peer, request, attempt, detail, now), now)

    def tick(self, now: float) -> list[PrefillAction]:
        actions = self._outer(self._inner.tick(now), now)
        for prompt in list(self._prompts.values()):
            if prompt.kept_until_s is not None and now >= prompt.kept_until_s:
                detail = "no retarget asked for the kept KV"
                actions.append(Report(prompt.key, Reason.UNKNOWN_REQUEST, detail, prompt.current.attempt))
                actions.append(self._let_go(prompt, Reason.UNKNOWN_REQUEST))
        return actions

    def open_keys(self) -> list[HandoverKey]:
        return list(self._prompts)

    @property
    def kept(self) -> int:
        """Requests whose KV waits for another decode worker."""
        return sum(prompt.kept_until_s is not None for prompt in self._prompts.values())

    def keeps(self, key: HandoverKey) -> bool:
        """True while the KV of this request waits for another decode worker, which is `kept_s` at most."""
        prompt = self._prompts.get(key)
        return prompt is not None and prompt.kept_until_s is not None

    def stats(self) -> PrefillStats:
        return self._inner.stats()

    # Inside ----------------------------------------------------------------------------------------------------------

    def _current(self, key: HandoverKey) -> HandoverKey:
        prompt = self._prompts.get(key)
        return key if prompt is None else prompt.current

    def _outer(self, actions: list[PrefillAction], now: float) -> list[PrefillAction]:
        """Actions about attempts as actions about requests."""
        result: list[PrefillAction] = []
        for action in actions:
            match action:
                case Granted(attempt):
                    result.append(Granted(self._opened_as[attempt]))
                case Report(attempt, reason, detail):
                    prompt = self._prompts[self._opened_as[attempt]]
                    kept = self._is_kept(prompt, reason, now)
                    if prompt.following is None:
                        result.append(Report(prompt.key, reason, detail, attempt.attempt, kept))
                case Release(attempt, progress, reason):
                    prompt = self._prompts[self._opened_as[attempt]]
                    result += self._ended(prompt, progress, reason, now)
                case _:
                    result.append(action)
        return result

    def _is_kept(self, prompt: HeldPrompt, reason: Reason | None, now: float) -> bool:
        lasts = self._config.kept_s > 0 and now < prompt.deadline_s and not prompt.is_cancelled
        return lasts and reason in DECODE_FAILED

    def _ended(
        self, prompt: HeldPrompt, progress: PromptProgress, reason: Reason | None, now: float
    ) -> list[PrefillAction]:
        """The attempt under way holds nothing any more."""
        prompt.progress = progress
        if prompt.following is not None:
            return self._begin(prompt, prompt.following, now)
        if not self._is_kept(prompt, reason, now):
            return [self._let_go(prompt, reason)]
        prompt.kept_until_s = min(now + self._config.kept_s, prompt.deadline_s)
        return []

    def _begin(self, prompt: HeldPrompt, target: Target, now: float) -> list[PrefillAction]:
        del self._opened_as[prompt.current]
        prompt.current, prompt.following, prompt.kept_until_s = target.key, None, None
        self._opened_as[target.key] = prompt.key
        actions = self._inner.opened(target.key, target.peer, prompt.total_tokens, prompt.deadline_s, now)
        done = prompt.progress
        if done.computed is not None:
            actions += self._inner.computed(target.key, *done.computed, now)
        if done.first_tokens is not None:
            actions += self._inner.first_tokens(target.key, done.first_tokens, now)
        return self._outer(actions, now)

    def _let_go(self, prompt: HeldPrompt, reason: Reason | None) -> Release:
        del self._prompts[prompt.key], self._opened_as[prompt.current]
        return Release(prompt.key, reason=reason)
