"""Log probabilities of a request's prompts, encoded as they arrive from workers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from baton_gateway.openai_api.json_pieces import EncodedJson
from baton_gateway.openai_api.logprob_json import CompletionLogprobs, PromptLogprobsJson
from baton_gateway.openai_api.openai_types import ChatRequest, CompletionRequest, Options
from baton_gateway.requests.request_events import Prompt
from baton_gateway.text.choice_text import ChoiceText, TokenInfo
from baton_gateway.text.revision_text import TextModel
from baton_wire.messages.values import PACKED_ID_BYTES, Finish, PromptLogprob, TokenLogprob, unpack_ids

INLINE_TOKENS: Final = 4_096
"""Fewer tokens are decoded in the event loop: about 1 ms."""


class ScoredPrompts:
    """Scores of each prompt. A token's place is its index in the prompt; the first has no log probability."""

    def __init__(self, prompts: Sequence[Prompt], options: Options, text: TextModel, has_echo: bool) -> None:
        self._prompts = [_ScoredPrompt(prompt, options, text, has_echo) for prompt in prompts]

    def take(self, prompt: int, first_index: int, logprobs: Sequence[PromptLogprob]) -> None:
        """Add log probabilities from place `first_index` on. Places that are known stay, because another attempt may
        repeat them. After a gap nothing is added, so that the prompt never becomes complete.
        """
        self._prompts[prompt].take(first_index, logprobs)

    def is_complete(self, prompt: int) -> bool:
        return self._prompts[prompt].is_complete

    def of(self, prompt: int) -> EncodedJson | None:
        """The log probabilities of a complete prompt, for their own field; None: the client does not want them."""
        table = self._prompts[prompt].table
        return None if table is None else table.value()

    def echo(self, prompt: int) -> CompletionLogprobs | None:
        """The tokens of a complete prompt as if they had been generated; None: the client does not want them."""
        return self._prompts[prompt].echo


class _ScoredPrompt:
    """One prompt. The largest message has 1,024 tokens, so that no call takes long."""

    def __init__(self, prompt: Prompt, options: Options, text: TextModel, has_echo: bool) -> None:
        self._prompt = prompt
        self._known = 1
        """The number of known places from the first on, which never has a log probability."""
        self._alternatives = options.prompt_logprobs or 0
        self._echoed = options.logprobs or 0
        self._offset = 0
        self._choice: ChoiceText | None = None
        self.table: PromptLogprobsJson | None = None
        self.echo: CompletionLogprobs | None = None
        if options.prompt_logprobs is not None:
            self.table = PromptLogprobsJson(text)
        if has_echo and options.logprobs is not None:
            self.echo = CompletionLogprobs(text)
            self._choice = text.choice_text((), skip_special=True, continues=False)
            self._add_echo(self.echo, self._choice, self._ids(0, 1), (None,))

    @property
    def is_complete(self) -> bool:
        return self._known == self._prompt.num_tokens

    def take(self, first_index: int, logprobs: Sequence[PromptLogprob]) -> None:
        again = self._known - first_index
        if again < 0 or again >= len(logprobs):
            return
        new = logprobs[again:]
        ids = self._ids(self._known, self._known + len(new))
        self._known += len(new)
        if len(ids) < len(new):  # more than the prompt has: it never becomes complete
            return
        if self.table is not None:
            self.table.add(ids, new, self._alternatives)
        if self.echo is not None and self._choice is not None:
            echoed = tuple(TokenLogprob(score.logprob, score.top[: self._echoed]) for score in new)
            self._add_echo(self.echo, self._choice, ids, echoed)

    def _add_echo(
        self, echo: CompletionLogprobs, choice: ChoiceText, ids: Sequence[int], logprobs: Sequence[TokenLogprob | None]
    ) -> None:
        """Add tokens with their offsets in the prompt's text."""
        infos = []
        for token, logprob in zip(ids, logprobs, strict=True):
            infos.append(TokenInfo(token, logprob, self._offset))
            self._offset += len(choice.push((token,), None, None).text)
        echo.add(infos)

    def _ids(self, begin: int, end: int) -> Sequence[int]:
        return unpack_ids(self._prompt.packed[begin * PACKED_ID_BYTES : end * PACKED_ID_BYTES])


def echoes(request: ChatRequest | CompletionRequest, text: TextModel) -> tuple[str, ...]:
    """The texts of the prompts if the client wants them echoed."""
    if isinstance(request, ChatRequest) or not request.echo:
        return ()
    return tuple(prompt if isinstance(prompt, str) else _text_of(prompt, text) for prompt in request.prompts)


async def echoed_prompts(request: ChatRequest | CompletionRequest, text: TextModel) -> tuple[str, ...]:
    """The texts of the prompts if the client wants them echoed. Long lists of ids are decoded in a thread."""
    if isinstance(request, ChatRequest) or not request.echo:
        return ()
    if sum(len(prompt) for prompt in request.prompts if not isinstance(prompt, str)) <= INLINE_TOKENS:
        return echoes(request, text)
    return await asyncio.to_thread(echoes, request, text)


def _text_of(ids: tuple[int, ...], text: TextModel) -> str:
    if text.tokenizer is not None:
        return text.decode(list(ids))
    return text.choice_text((), skip_special=True, continues=False).push(ids, None, Finish.LENGTH).text
