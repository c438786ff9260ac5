"""Prompts that workers can run, from a parsed request and what its model revision allows. Pure.

Everything here depends on the model: token counts against the context, ids against the vocabulary, default lengths,
end ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from baton_gateway.answers.formats import AnswerFormat
from baton_gateway.answers.parse_plan import ParsePlan, make_parse_plan
from baton_gateway.answers.tool_use import ToolMode, ToolUse
from baton_gateway.errors import context_exceeded, invalid, unsupported
from baton_gateway.openai_api.answer_bounds import max_tokens_each
from baton_gateway.openai_api.chat_messages import ChatMessage
from baton_gateway.openai_api.encoding_types import EncodeRequest
from baton_gateway.openai_api.openai_types import ChatRequest, CompletionRequest, Options
from baton_gateway.openai_api.prompting_fields import Prompting
from baton_gateway.requests.encode_plan import EncodeInput, EncodePlan
from baton_gateway.requests.request_events import Prompt
from baton_gateway.text.chat_template import Conversation, RenderedChat
from baton_gateway.text.choice_text import ChoiceText
from baton_gateway.text.encoding import PromptText
from baton_gateway.text.generation_defaults import GenerationDefaults
from baton_gateway.text.revision_text import TextModel
from baton_gateway.text.template_renderer import PromptBudget
from baton_gateway.workers.request_limits import ModelLimits
from baton_wire.messages.encoding import Encoding
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
"""End ids of a model that are sent to workers; a client's own stop ids fit into the message besides."""
ENCODED_SAMPLING = SamplingParams(max_tokens=1, temperature=0.0)
"""Sampling of a prompt that is encoded: nothing is drawn."""
MAX_PROMPT_VALUES = 1 << 18
"""Log probabilities of prompt tokens in one answer: all are held until its first token."""


def build_conversation(messages: Sequence[ChatMessage], tool_use: ToolUse, prompting: Prompting) -> Conversation:
    """Build what the model's template renders. Tools that must not be called are left out."""
    tools = () if tool_use.mode is ToolMode.NONE else tool_use.tools
    return Conversation(
        messages=tuple(messages),
        tools=tuple(tool.for_template() for tool in tools),
        variables=dict(prompting.variables),
        effort=prompting.effort,
        add_generation_prompt=prompting.add_generation_prompt,
        continue_final_message=prompting.continue_final_message,
    )


def plan_parsing(request: ChatRequest, rendered: RenderedChat, form: AnswerFormat) -> ParsePlan:
    """Decide how the answer to a chat is parsed. Raises RefusedError for an answer that could not be parsed."""
    continued = request.messages[-1]["content"] if request.prompting.continue_final_message else None
    return make_parse_plan(form, request.tool_use, rendered.text, continued, request.options.output_format)


def bind_thought(plan: ParsePlan | None, max_tokens: int | None, is_bound: bool, text: TextModel) -> Thought | None:
    """The marks of a thought, for workers that count its tokens or start a grammar after it; None: they do neither.
    `is_bound`: a grammar constrains the answer.

    Raises RefusedError for a limit on the thoughts of a model that has none.
    """
    marks = plan.reasoning_marks if plan is not None else None
    if marks is None and max_tokens is not None:
        raise unsupported("max_thinking_tokens", "it is not known how this model writes thoughts")
    if marks is None or plan is None or (max_tokens is None and not is_bound):
        return None
    if is_bound and plan.is_answering:
        return None
    start, end = map(text.mark_ids, marks)
    if max(len(start), len(end)) > MAX_MARK_IDS:
        raise unsupported("max_thinking_tokens", "this model's marks of a thought have too many tokens")
    return Thought(end, () if plan.is_thinking else start, max_tokens)


def begin_choice_texts(
    request: ChatRequest | CompletionRequest, text: TextModel, plan: ParsePlan | None, echoed: Sequence[str]
) -> list[ChoiceText]:
    """The empty texts of all choices, in order. `echoed`: the text that those of each prompt continue, or nothing."""
    options, is_chat = request.options, isinstance(request, ChatRequest)
    return [
        text.choice_text(
            options.stop,
            options.skip_special_tokens,
            not is_chat,
            len(echo),
            plan.make_parser() if plan is not None else None,
            options.include_stop_str_in_output,
        )
        for echo in echoed
        for _ in range(options.n)
    ]


def chat_room(text: TextModel, limits: ModelLimits) -> PromptBudget:
    """The room for a rendered chat."""
    return PromptBudget(limits.max_context_tokens, text.longest_token_bytes)


def chat_prompt(
    rendered: RenderedChat, text: TextModel, limits: ModelLimits, adds_special_tokens: bool = False
) -> PromptText:
    return PromptText(
        text, rendered.text, not adds_special_tokens, limits.max_context_tokens, "messages", rendered.cuts
    )


def completion_prompts(request: CompletionRequest, text: TextModel, limits: ModelLimits) -> list[PromptText | bytes]:
    """Texts to tokenise, and packed ids where the client sent ids.

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


def encoded_texts(texts: EncodeInput, model: TextModel, limits: ModelLimits, field: str) -> list[PromptText | bytes]:
    """Texts to tokenise of one prompt that is encoded, or its ids. Raises RefusedError."""
    parts: list[PromptText | bytes] = []
    for text in texts:
        if isinstance(text, int):
            check_ids(texts_ids := [token for token in texts if isinstance(token, int)], limits, field)
            return [pack_ids(texts_ids)]
        parts.append(PromptText(model, text.text, text.is_rendered, limits.max_context_tokens, field, text.cuts))
    return parts


def make_encoded_prompts(
    request: EncodeRequest, plan: EncodePlan, packed: Sequence[bytes], encoding: Encoding, limits: ModelLimits
) -> tuple[Prompt, ...]:
    """Check packed prompts that are encoded. Raises RefusedError that names the offending field."""
    prompts = []
    for ids, field in zip(packed, plan.fields, strict=True):
        kept = _truncate(ids, request.options, limits)
        tokens = len(kept) // PACKED_ID_BYTES
        check_ids((largest_id(kept),), limits, field)
        if not tokens:
            raise invalid(field, f"'{field}' has no tokens.", "empty_prompt")
        if tokens > limits.max_context_tokens:
            raise context_exceeded(field, limits.max_context_tokens, tokens, None)
        prompts.append(Prompt(kept, ENCODED_SAMPLING, "", limits.vocab_size, encoding, plan.width))
    return tuple(prompts)


class PromptRules(msgspec.Struct, frozen=True):
    """How this gateway is configured to fill in requests."""

    generation_defaults: bool = True
    """True if a model's own sampling defaults count."""
    clamps_max_tokens: bool = False
    """True if a request for more tokens than fit gets those that fit; False: it is refused."""


class Preparation(msgspec.Struct, frozen=True):
    """The values that all prompts of one request are checked against and filled in with."""

    options: Options
    field: str
    """The request's field with the prompts, for refusals."""
    text: TextModel
    limits: ModelLimits
    defaults: GenerationDefaults
    """Sampling parameters where the client gave none."""
    seed: int
    """Used unless the client gave one."""
    tenant_salt: str
    clamps_max_tokens: bool = False


def make_prompts(
    preparation: Preparation, encoded: Sequence[bytes], grammar: Grammar | None = None, thought: Thought | None = None
) -> tuple[Prompt, ...]:
    """Check packed prompts and give each its sampling parameters. `grammar` and `thought` constrain the answers.

    Raises RefusedError that names the offending field.
    """
    options, limits, field = preparation.options, preparation.limits, preparation.field
    encoded = [_truncate(packed, options, limits) for packed in encoded]
    for packed in encoded:
        check_ids((largest_id(packed),), limits, field)  # a tokenizer may write tokens that its model has not
    _check_prompt_values(options, sum(map(len, encoded)) // PACKED_ID_BYTES, field == "messages")
    check_ids(options.stop_token_ids, limits, "stop_token_ids")
    check_ids([token for token, _ in options.logit_bias], limits, "logit_bias")
    if thought is not None:
        check_ids((*thought.start, *thought.end), limits, "max_thinking_tokens")
    first_seed = preparation.seed if options.seed is None else options.seed
    salt = cache_salt(preparation.tenant_salt, options.cache_salt)
    prompts = []
    for place, packed in enumerate(encoded):
        tokens, seed = len(packed) // PACKED_ID_BYTES, (first_seed + place) % _SEEDS
        sampling = _make_sampling(preparation, tokens, seed, grammar, thought)
        prompts.append(Prompt(packed, sampling, salt, limits.vocab_size))
    return tuple(prompts)


def cache_salt(tenant_salt: str, client_salt: str) -> str:
    """The salt that separates prefix caches: equal only for the same tenant and the same `cache_salt`."""
    if not tenant_salt and not client_salt:
        return ""
    return hashlib.blake2b(client_salt.encode(), digest_size=16, key=tenant_salt.encode()[:64]).hexdigest()


def check_ids(ids: Sequence[int], limits: ModelLimits, field: str) -> None:
    """Raises RefusedError for an id that the model does not have."""
    if ids and max(ids) >= limits.vocab_size:
        raise invalid(field, f"'{field}' has a token id beyond the vocabulary of {limits.vocab_size}.", "out_of_range")


def _truncate(packed: bytes, options: Options, limits: ModelLimits) -> bytes:
    """Keep the end of a prompt that is longer than the client wants."""
    most = options.truncate_prompt_tokens
    if most is None:
        return packed
    if most < 0:
        most = max(1, limits.max_context_tokens - max(1, options.max_tokens or 1))
    return packed[-most * PACKED_ID_BYTES :]


def _check_prompt_values(options: Options, tokens: int, is_chat: bool) -> None:
    """Bound the log probabilities of prompt tokens: a chat writes them once, a completion in each of its choices."""
    if options.prompt_alternatives is None:
        return
    field = "logprobs" if options.prompt_logprobs is None else "prompt_logprobs"
    times = 1 if is_chat else options.n
    values = times * tokens * (1 + options.prompt_alternatives)
    if values > MAX_PROMPT_VALUES:
        where = "" if times == 1 else f" in each of {times} choices ('n')"
        message = (
            f"'{field}' asks for {values} log probabilities of prompt tokens{where}; "
            f"at most {MAX_PROMPT_VALUES} are allowed."
        )
        raise invalid(field, message, "out_of_range")


def _make_sampling(
    preparation: Preparation, prompt_tokens: int, seed: int, grammar: Grammar | None, thought: Thought | None
) -> SamplingParams:
    options, text, limits = preparation.options, preparation.text, preparation.limits
    defaults = preparation.defaults
    max_tokens = _max_tokens(preparation, prompt_tokens)
    if options.min_tokens > max_tokens:
        raise invalid("min_tokens", f"'min_tokens' must not exceed the {max_tokens} tokens that fit.")
    end_ids = () if options.ignore_eos else tuple(token for token in text.eos_ids if 0 <= token < limits.vocab_size)
    return SamplingParams(
        max_tokens=max_tokens,
        seed=seed,
        temperature=_or_default(options.temperature, defaults.temperature),
        top_k=_or_default(options.top_k, defaults.top_k) or None,
        top_p=_or_default(options.top_p, defaults.top_p),
        min_p=_or_default(options.min_p, defaults.min_p),
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        repetition_penalty=_or_default(options.repetition_penalty, defaults.repetition_penalty),
        min_tokens=options.min_tokens,
        logit_bias=options.logit_bias,
        stop_token_ids=tuple(dict.fromkeys((*end_ids[:MAX_END_IDS], *options.stop_token_ids))),
        logprobs=options.logprobs,
        prompt_logprobs=options.prompt_alternatives,
        grammar=grammar,
        thought=thought,
    )


def _or_default(asked: T | None, default: T) -> T:
    return default if asked is None else asked


def _max_tokens(preparation: Preparation, prompt_tokens: int) -> int:
    """The client's `max_tokens` if it fits; without one, all that fits into the context and into an answer that is
    held. Workers draw one token even where none is asked for.
    """
    options, limits, field = preparation.options, preparation.limits, preparation.field
    if prompt_tokens == 0:
        raise invalid(field, f"'{field}' has no tokens.", "empty_prompt")
    room, asked = limits.max_context_tokens - prompt_tokens, options.max_tokens
    if asked is not None and asked > room and preparation.clamps_max_tokens:
        asked = None if room > 0 else 1
    if room < 1 or (asked is not None and asked > room):
        raise context_exceeded(field, limits.max_context_tokens, prompt_tokens, asked)
    if asked is not None:
        return max(asked, 1)
    return min(room, max_tokens_each(options.n, options.logprobs)) if options.is_held else room
