"""A parsed request and a model revision to prompts that the workers can run. Pure but for the tokenizer's work.

Here stands what depends on the model: token counts against the context, ids against the vocabulary, default lengths,
end ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

from baton_gateway.answers.formats import AnswerFormat
from baton_gateway.answers.parse_plan import ParsePlan, reading_of
from baton_gateway.answers.tool_use import ToolMode, ToolUse
from baton_gateway.errors import context_exceeded, invalid, unsupported
from baton_gateway.openai_api.answer_bounds import most_tokens
from baton_gateway.openai_api.chat_messages import ChatMessage
from baton_gateway.openai_api.openai_types import ChatRequest, CompletionRequest, Options
from baton_gateway.openai_api.prompting_fields import Prompting
from baton_gateway.requests.request_events import Prompt
from baton_gateway.text.chat_template import Conversation, RenderedChat
from baton_gateway.text.encoding import PromptText
from baton_gateway.text.generation_defaults import GenerationDefaults
from baton_gateway.text.revision_text import TextModel
from baton_gateway.text.template_renderer import ChatRoom
from baton_gateway.workers.request_limits import ModelLimits
from baton_wire.messages.values import (
    MAX_MARK_IDS,
    PACKED_ID_BYTES,
    Grammar,
    SamplingParams,
    Thought,
    largest_id,
    pack_ids,
)

T = TypeVar("T")

_SEEDS = 1 << 63
MAX_END_IDS = 128
"""Of a model; beside them a client's fit into a message."""
MAX_PROMPT_VALUES = 1 << 18
"""Log probabilities of prompts' tokens that one answer tells: they are all held until its first token."""


def conversation(messages: Sequence[ChatMessage], tool_use: ToolUse, prompting: Prompting) -> Conversation:
    """What the model's template renders. Of tools that may not be called the model is not told."""
    told = () if tool_use.mode is ToolMode.NONE else tool_use.tools
    return Conversation(
        messages=tuple(messages),
        tools=tuple(tool.for_template() for tool in told),
        variables=dict(prompting.variables),
        effort=prompting.effort,
        add_generation_prompt=prompting.add_generation_prompt,
        continue_final_message=prompting.continue_final_message,
    )


def chat_reading(request: ChatRequest, rendered: RenderedChat, form: AnswerFormat) -> ParsePlan:
    """How the answer to a chat is read. Raises RefusedError for what could not be read."""
    continued = request.messages[-1]["content"] if request.prompting.continue_final_message else None
    return reading_of(form, request.tool_use, rendered.text, continued)


def thought_of(reading: ParsePlan | None, max_tokens: int | None, is_bound: bool, text: TextModel) -> Thought | None:
    """What workers are told of a thought: where they count its tokens, or begin a grammar behind it.

    Raises RefusedError for a bound on thoughts of a model that has none.
    """
    marks = reading.thought_marks if reading is not None else None
    if marks is None and max_tokens is not None:
        raise unsupported("max_thinking_tokens", "it is not known how this model writes thoughts")
    if marks is None or reading is None or (max_tokens is None and not is_bound):
        return None
    if is_bound and reading.is_answering:
        return None
    start, end = map(text.mark_ids, marks)
    if max(len(start), len(end)) > MAX_MARK_IDS:
        raise unsupported("max_thinking_tokens", "this model's marks of a thought have too many tokens")
    return Thought(end, () if reading.is_thinking else start, max_tokens)


def chat_room(text: TextModel, limits: ModelLimits) -> ChatRoom:
    """What of a rendered chat fits."""
    return ChatRoom(limits.max_context_tokens, text.longest_token_bytes)


def chat_prompt(
    rendered: RenderedChat, text: TextModel, limits: ModelLimits, adds_special_tokens: bool = False
) -> PromptText:
    return PromptText(
        text, rendered.text, not adds_special_tokens, limits.max_context_tokens, "messages", rendered.cuts
    )


def completion_prompts(request: CompletionRequest, text: TextModel, limits: ModelLimits) -> list[PromptText | bytes]:
    """What is to be tokenised, and packed ids where the client sent them.

    Raises RefusedError for ids that the model does not have.
    """
    prompts: list[PromptText | bytes] = []
    for place, prompt in enumerate(request.prompts):
        field = "prompt" if len(request.prompts) == 1 else f"prompt[{place}]"
        if isinstance(prompt, str):
            prompts.append(PromptText(text, prompt, False, limits.max_context_tokens, field))
        else:
            check_ids(prompt, limits, field)
            prompts.append(pack_ids(prompt))
    return prompts


def make_prompts(  # noqa: PLR0913
    options: Options,
    encoded: Sequence[bytes],
    text: TextModel,
    limits: ModelLimits,
    field: str,
    seed: int,
    tenant_salt: str,
    defaults: GenerationDefaults,
    grammar: Grammar | None = None,
    thought: Thought | None = None,
) -> tuple[Prompt, ...]:
    """Check lengths of packed prompts and fill in `defaults`; `seed` is used unless the client gave one. `grammar` and
    `thought` bind the answers.

    Raises RefusedError, with `field` for the prompts.
    """
    encoded = [_truncated(packed, options, limits) for packed in encoded]
    for packed in encoded:
        check_ids((largest_id(packed),), limits, field)  # a tokenizer may write tokens that its model has not
    _check_prompt_values(options, sum(map(len, encoded)) // PACKED_ID_BYTES, field == "messages")
    check_ids(options.stop_token_ids, limits, "stop_token_ids")
    check_ids([token for token, _ in options.logit_bias], limits, "logit_bias")
    if thought is not None:
        check_ids((*thought.start, *thought.end), limits, "max_thinking_tokens")
    first_seed = seed if options.seed is None else options.seed
    salt = cache_salt(tenant_salt, options.cache_salt)
    prompts = []
    for place, packed in enumerate(encoded):
        tokens, its_seed = len(packed) // PACKED_ID_BYTES, (first_seed + place) % _SEEDS
        sampling = _sampling(options, tokens, text, limits, field, its_seed, defaults, grammar, thought)
        prompts.append(Prompt(packed, sampling, salt, limits.vocab_size))
    return tuple(prompts)


def cache_salt(tenant_salt: str, client_salt: str) -> str:
    """What separates prefix caches: equal only for the same tenant and the same `cache_salt`."""
    if not tenant_salt and not client_salt:
        return ""
    return hashlib.blake2b(client_salt.encode(), digest_size=16, key=tenant_salt.encode()[:64]).hexdigest()


def check_ids(ids: Sequence[int], limits: ModelLimits, field: str) -> None:
    """Raises RefusedError for an id that the model does not have."""
    if ids and max(ids) >= limits.vocab_size:
        raise invalid(field, f"'{field}' has a token id beyond the vocabulary of {limits.vocab_size}.", "out_of_range")


def _truncated(packed: bytes, options: Options, limits: ModelLimits) -> bytes:
    """The end of a prompt that is to be no longer."""
    most = options.truncate_prompt_tokens
    if most is None:
        return packed
    if most < 0:
        most = max(1, limits.max_context_tokens - max(1, options.max_tokens or 1))
    return packed[-most * PACKED_ID_BYTES :]


def _check_prompt_values(options: Options, tokens: int, is_chat: bool) -> None:
    """A chat tells them once, a completion in each of its choices."""
    if options.prompt_alternatives is None:
        return
    field = "logprobs" if options.prompt_logprobs is None else "prompt_logprobs"
    times = 1 if is_chat else options.n
    values = times * tokens * (1 + options.prompt_alternatives)
    if values > MAX_PROMPT_VALUES:
        told = "" if times == 1 else f" in each of {times} choices ('n')"
        message = (
            f"'{field}' asks for {values} log probabilities of prompt tokens{told}; "
            f"at most {MAX_PROMPT_VALUES} are told."
        )
        raise invalid(field, message, "out_of_range")


def _sampling(  # noqa: PLR0913
    options: Options,
    prompt_tokens: int,
    text: TextModel,
    limits: ModelLimits,
    field: str,
    seed: int,
    defaults: GenerationDefaults,
    grammar: Grammar | None,
    thought: Thought | None,
) -> SamplingParams:
    max_tokens = _max_tokens(options, prompt_tokens, limits, field)
    if options.min_tokens > max_tokens:
        raise invalid("min_tokens", f"'min_tokens' must not exceed the {max_tokens} tokens that fit.")
    end_ids = () if options.ignore_eos else tuple(token for token in text.eos_ids if 0 <= token < limits.vocab_size)
    return SamplingParams(
        max_tokens=max_tokens,
        seed=seed,
        temperature=_chosen(options.temperature, defaults.temperature),
        top_k=_chosen(options.top_k, defaults.top_k) or None,
        top_p=_chosen(options.top_p, defaults.top_p),
        min_p=_chosen(options.min_p, defaults.min_p),
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        repetition_penalty=_chosen(options.repetition_penalty, defaults.repetition_penalty),
        min_tokens=options.min_tokens,
        logit_bias=options.logit_bias,
        stop_token_ids=tuple(dict.fromkeys((*end_ids[:MAX_END_IDS], *options.stop_token_ids))),
        logprobs=options.logprobs,
        prompt_logprobs=options.prompt_alternatives,
        grammar=grammar,
        thought=thought,
    )


def _chosen(asked: T | None, default: T) -> T:
    return default if asked is None else asked


def _max_tokens(options: Options, prompt_tokens: int, limits: ModelLimits, field: str) -> int:
    """What was asked for if it fits; without a wish all that fits into the context, and into an answer that is held.
    Workers draw one token even where none is asked for.
    """
    if prompt_tokens == 0:
        raise invalid(field, f"'{field}' has no tokens.", "empty_prompt")
    room, asked = limits.max_context_tokens - prompt_tokens, options.max_tokens
    if room < 1 or (asked is not None and asked > room):
        raise context_exceeded(field, limits.max_context_tokens, prompt_tokens, asked)
    if asked is not None:
        return max(asked, 1)
    return min(room, most_tokens(options.n, options.logprobs)) if options.is_held else room
