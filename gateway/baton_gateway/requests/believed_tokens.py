"""Whether what a worker says of a request can be so. A worker that holds a valid key may be broken, or lie. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from baton_gateway.requests.request_events import Prompt
from baton_wire.messages.gateway_link import PromptLogprobs
from baton_wire.messages.values import PromptLogprob, TokenEntry, TokenLogprob

MOST_LOGPROB: Final = 0.01
"""The logarithm of 1 is 0; beyond it lies only what rounding makes."""


def entry_fault(entry: TokenEntry, prompt: Prompt) -> str | None:
    """Why these tokens can't be this prompt's answer, if so."""
    sampling = prompt.sampling
    if max(entry.ids) >= prompt.vocab_size:
        return f"token id {max(entry.ids)} is not below the vocabulary size {prompt.vocab_size}"
    if entry.first_index + len(entry.ids) > sampling.max_tokens:
        return f"{entry.first_index + len(entry.ids)} tokens where {sampling.max_tokens} were asked for"
    if sampling.logprobs is None:
        return None
    if entry.logprobs is None or len(entry.logprobs) != len(entry.ids):
        return "not a log probability for each token"
    return None if are_logprobs(entry.logprobs, prompt.vocab_size) else "log probabilities that are none"


def scores_fault(message: PromptLogprobs, prompt: Prompt) -> str | None:
    """Why these can't be log probabilities of the prompt's own tokens, if so."""
    if prompt.sampling.prompt_logprobs is None:
        return "log probabilities of a prompt that nobody asked for"
    if message.first_index + len(message.logprobs) > prompt.num_tokens:
        return f"log probabilities beyond the prompt's {prompt.num_tokens} tokens"
    return None if are_logprobs(message.logprobs, prompt.vocab_size) else "log probabilities that are none"


def are_logprobs(logprobs: Iterable[TokenLogprob | PromptLogprob], vocab_size: int) -> bool:
    """Whether each can be the logarithm of a probability, of tokens that the model has."""
    return all(
        each.logprob <= MOST_LOGPROB and all(token < vocab_size and value <= MOST_LOGPROB for token, value in each.top)
        for each in logprobs
    )
