"""Validates tokens and log probabilities from workers: a worker with a valid key may be broken, or lie. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from baton_gateway.requests.request_events import Prompt
from baton_wire.messages.encoding import FLOAT_BYTES, EncodedPrompt, unpack_floats
from baton_wire.messages.gateway_link import PromptLogprobs
from baton_wire.messages.packed_logprobs import unpack_logprobs
from baton_wire.messages.values import PromptLogprob, TokenEntry, TokenLogprob

MOST_LOGPROB: Final = 0.01
"""The logarithm of 1 is 0; rounding may bring slightly more."""


def read_logprobs(entry: TokenEntry) -> tuple[TokenLogprob, ...] | None:
    """The log probabilities of the entry's tokens; None: it has none that can be read."""
    try:
        return None if entry.logprobs is None else unpack_logprobs(entry.logprobs)
    except ValueError:
        return None


def find_entry_fault(entry: TokenEntry, logprobs: tuple[TokenLogprob, ...] | None, prompt: Prompt) -> str | None:
    """Why these tokens cannot belong to an answer to this prompt; None: they can. `logprobs`: read from the entry."""
    sampling = prompt.sampling
    if max(entry.ids) >= prompt.vocab_size:
        return f"token id {max(entry.ids)} is not below the vocabulary size {prompt.vocab_size}"
    if entry.first_index + len(entry.ids) > sampling.max_tokens:
        return f"{entry.first_index + len(entry.ids)} tokens where {sampling.max_tokens} were asked for"
    if sampling.logprobs is None:
        return None
    if logprobs is None or len(logprobs) != len(entry.ids):
        return "not a log probability for each token"
    return None if are_logprobs(logprobs, prompt.vocab_size) else "values that are no log probabilities"


def find_logprobs_fault(message: PromptLogprobs, prompt: Prompt) -> str | None:
    """Why these cannot be log probabilities of the prompt's own tokens; None: they can."""
    if prompt.sampling.prompt_logprobs is None:
        return "log probabilities of a prompt that the request did not ask for"
    if message.first_index + len(message.logprobs) > prompt.num_tokens:
        return f"log probabilities beyond the prompt's {prompt.num_tokens} tokens"
    return None if are_logprobs(message.logprobs, prompt.vocab_size) else "values that are no log probabilities"


def find_encoded_fault(message: EncodedPrompt, prompt: Prompt) -> str | None:
    """Why this cannot be the result of the encoded prompt; None: it can."""
    if prompt.encoding is None or len(message.values) != FLOAT_BYTES * prompt.width:
        return f"{len(message.values)} bytes where {prompt.width} values were asked for"
    return None if all(map(math.isfinite, unpack_floats(message.values))) else "values that are not finite"


def are_logprobs(logprobs: Iterable[TokenLogprob | PromptLogprob], vocab_size: int) -> bool:
    """Return whether each can be the logarithm of a probability, with alternatives from the model's vocabulary."""
    return all(
        logprob.logprob <= MOST_LOGPROB
        and all(token < vocab_size and value <= MOST_LOGPROB for token, value in logprob.top)
        for logprob in logprobs
    )
