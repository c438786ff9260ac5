"""Faulty variants of what sends finished KV on to another decode worker: defects of the field, put back here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from baton_kv_transfer.handover import HandoverKey
from baton_kv_transfer.prefill.records import PrefillAction, PromptProgress, Release
from baton_kv_transfer.prefill.retargeting import PrefillKeeper, Target
from baton_wire.messages.values import Reason


class FreesWhatItKeeps(PrefillKeeper):
    """vllm#55470: blocks go back to the pool although the same KV is still to be sent."""

    def _ended(self, prompt: Any, progress: PromptProgress, reason: Reason | None, now: float) -> list[PrefillAction]:
        actions = super()._ended(prompt, progress, reason, now)
        return [*actions, Release(prompt.key)] if prompt.kept_until_s is not None else actions


class KeepsForEver(PrefillKeeper):
    """vllm#46283, llm-d operations guide: no worker fetches the KV and its blocks stay pinned."""

    def tick(self, now: float) -> list[PrefillAction]:
        return self._outer(self._inner.tick(now), now)


class SendsOnUnderOpenPuts(PrefillKeeper):
    """vllm#56104: what the first decode worker is still written is not waited for before the next one's turn."""

    def retargeted(self, key: HandoverKey, target: Target, deadline_s: float, now: float) -> list[PrefillAction]:
        prompt = self._prompts.get(key)
        if prompt is None or prompt.kept_until_s is not None:
            return super().retargeted(key, target, deadline_s, now)
        machine: Any = self._inner
        inner = machine._handovers.get(prompt.current)
        prompt.progress = PromptProgress() if inner is None else inner.progress
        before, prompt.following = prompt.current, target
        actions = self._begin(prompt, target, now)
        self._opened_as[before] = key
        return [*actions, *self._outer(self._inner.cancelled(before, Reason.CANCELLED, "", now), now)]


class LosesFirstTokens(PrefillKeeper):
    """dynamo#7634, dynamo#7930: what was drawn before is not known to the second hand-over."""

    def _begin(self, prompt: Any, target: Target, now: float) -> list[PrefillAction]:
        prompt.progress = replace(prompt.progress, first_tokens=None)
        return super()._begin(prompt, target, now)


class LosesProgress(PrefillKeeper):
    """vllm#53095: the second hand-over believes more blocks to be in place than are."""

    def _begin(self, prompt: Any, target: Target, now: float) -> list[PrefillAction]:
        if prompt.progress.computed is not None:
            tokens, blocks = prompt.progress.computed
            more = min(prompt.total_tokens, len(blocks) * 4)
            prompt.progress = replace(prompt.progress, computed=(max(tokens, more), blocks[::-1]))
        return super()._begin(prompt, target, now)
