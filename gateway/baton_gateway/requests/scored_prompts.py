"""Log probabilities of a request's prompts as they come from workers, and what its client reads of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from baton_gateway.http_api.openai_types import ChatRequest, CompletionRequest
from baton_gateway.requests.request_events import Prompt
from baton_gateway.text.choice_text import Increment, TokenInfo
from baton_gateway.text.revision_text import TextModel
from baton_wire.messages.values import PromptLogprob, TokenLogprob


class ScoredPrompts:
    """What is known of each prompt. A token's place is its index in the prompt; the first has no log probability."""

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        self._prompts = prompts
        self._found: list[list[PromptLogprob]] = [[] for _ in prompts]

    def take(self, prompt: int, first_index: int, logprobs: Sequence[PromptLogprob]) -> None:
        """Log probabilities from place `first_index` on. What is known is kept: an attempt may tell it again.

        A gap is left as it is, so that the prompt never becomes complete.
        """
        found = self._found[prompt]
        known = len(found) + 1 - first_index
        if known >= 0:
            found += logprobs[known:]

    def is_complete(self, prompt: int) -> bool:
        return len(self._found[prompt]) == self._prompts[prompt].num_tokens - 1

    def of(self, prompt: int) -> tuple[PromptLogprob | None, ...]:
        """One for each token of a complete prompt."""
        return (None, *self._found[prompt])

    def echo(self, prompt: int, alternatives: int, text: TextModel) -> tuple[TokenInfo, ...]:
        """The prompt's tokens as if they had been generated, each with at most so many alternatives."""
        ids = tuple(self._prompts[prompt].ids())
        logprobs = tuple(
            None if each is None else TokenLogprob(each.logprob, each.top[:alternatives]) for each in self.of(prompt)
        )
        return token_infos(ids, logprobs, text)


def token_infos(ids: Sequence[int], logprobs: Sequence[TokenLogprob | None], text: TextModel) -> tuple[TokenInfo, ...]:
    """Tokens with their offsets in the text that they make from its beginning."""
    choice = text.choice_text((), skip_special=True, continues=False)
    infos, offset = [], 0
    for token, logprob in zip(ids, logprobs, strict=True):
        infos.append(TokenInfo(token, logprob, offset))
        offset += len(choice.push((token,), None, None).text)
    return tuple(infos)


def echoes(request: ChatRequest | CompletionRequest, text: TextModel) -> tuple[str, ...]:
    """The texts of the prompts that are given back; none as a rule."""
    if isinstance(request, ChatRequest) or not request.echo:
        return ()
    return tuple(prompt if isinstance(prompt, str) else text.decode(list(prompt)) for prompt in request.prompts)


def with_echo(increment: Increment, text: str, tokens: tuple[TokenInfo, ...] = ()) -> Increment:
    """A choice's first increment behind its prompt."""
    return replace(increment, text=text + increment.text, tokens=tokens + increment.tokens)
