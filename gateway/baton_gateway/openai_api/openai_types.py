"""Typed requests of the two generating endpoints: every field has bounds, and unknown fields are refused.

`requests.preparing` checks what depends on the model (context length, token counts). docs/api-http.md lists the fields.
"""

from __future__ import annotations

import enum
import re
from typing import Any

import msgspec

from baton_gateway.answers.tool_grammars import is_constrained
from baton_gateway.answers.tool_use import NO_TOOLS, ToolUse
from baton_gateway.errors import invalid, unsupported
from baton_gateway.openai_api.answer_bounds import check_answer
from baton_gateway.openai_api.chat_messages import ChatMessage, drop_unknown_fields, read_messages
from baton_gateway.openai_api.openai_fields import (
    MAX_IGNORED_BYTES,
    MAX_TEXT_CHARS,
    Fields,
    UnknownFields,
    check_integer,
    check_number,
    check_text,
    wrong_type,
)
from baton_gateway.openai_api.output_format_fields import check_may_end, read_output_format
from baton_gateway.openai_api.priority_fields import read_priority
from baton_gateway.openai_api.prompting_fields import PLAIN_PROMPTING, Prompting, read_prompting, read_thinking_budget
from baton_gateway.openai_api.tool_fields import read_tool_use
from baton_gateway.structured_outputs.output_format import OutputFormat
from baton_wire.tenant_table import PriorityClass

MAX_CHOICES = 16
MAX_TOKENS = 1 << 20
MAX_PROMPTS = 64
MAX_STOPS = 16
MAX_STOP_BYTES = 256
MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 1_024
MAX_TOKEN_ID = (1 << 24) - 1
MAX_STOP_IDS = 64
_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,7}")

_IGNORED = (
    "user", "metadata", "store", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "prompt_cache_options", "client_metadata", "cache_control", "session_id", "trace", "provider", "route",
    "include_reasoning", "litellm_metadata", "litellm_session_id", "length_penalty", "early_stopping",
)  # fmt: skip
"""Fields that are accepted without effect on the answer: they concern the provider's side or beam search."""
_NOT_SERVED: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    ("use_beam_search", "answers are sampled", (False,)),
    ("allowed_token_ids", "use 'structured_outputs' or 'logit_bias'", ()),
    ("bad_words", "use 'logit_bias'", ([],)),
    ("logits_processors", "clients' code does not run here", ([],)),
    ("return_tokens_as_token_ids", "'logprobs' reports the tokens", (False,)),
    ("spaces_between_special_tokens", "texts are what their tokens say", (True,)),
    ("kv_transfer_params", "workers find each other", ({},)),
)
"""Fields of other servers that change the answer, why they are refused, and their harmless values."""


class ApiEndpoint(enum.Enum):
    CHAT = "chat"
    COMPLETIONS = "completions"


class Options(msgspec.Struct, frozen=True):
    """Generation options, the same for both endpoints. None: the default."""

    model: str
    n: int
    max_tokens: int | None
    min_tokens: int
    temperature: float | None
    top_p: float | None
    top_k: int | None
    """0: off, whatever the model's default is."""
    min_p: float | None
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float | None
    logit_bias: tuple[tuple[int, float], ...]
    seed: int | None
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    skip_special_tokens: bool
    include_stop_str_in_output: bool
    truncate_prompt_tokens: int | None
    """The most of a prompt's last tokens that are used; -1: as many as leave space for the answer."""
    logprobs: int | None
    prompt_logprobs: int | None
    """Alternatives for each token of the prompt, in their own field; None: not requested."""
    prompt_alternatives: int | None
    """The most alternatives that any part of the answer reports for a prompt's tokens; None: none is reported."""
    stream: bool
    include_usage: bool
    continuous_usage: bool
    """True if every chunk has the usage so far; only with `include_usage`."""
    cache_salt: str
    is_held: bool = False
    """True if the whole answer is held until its end: it is not streamed, or its last event repeats it."""
    output_format: OutputFormat | None = None
    """The format that the answer must follow; None: any."""
    ignored: tuple[str, ...] = ()
    """Names of unknown fields that were ignored, as this gateway is configured."""
    returns_token_ids: bool = False
    """True if the answer has the ids of its prompt's and its own tokens."""
    prompt_cache_key: str = ""
    """The client's name of the session; a hint for routing."""
    alias: str | None = None
    """The alias that the client wrote in `model`; answers repeat it."""
    priority: PriorityClass | None = None
    """The class that the client asks for; None: it asks for none."""
    echoes_tier: bool = False
    """True if the answer has the `service_tier` that was used."""


_NO_ANSWER = Options(
    model="", n=1, max_tokens=1, min_tokens=0, temperature=None, top_p=None, top_k=None, min_p=None,
    presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=None, logit_bias=(), seed=None, stop=(),
    stop_token_ids=(), ignore_eos=False, skip_special_tokens=True, include_stop_str_in_output=False,
    truncate_prompt_tokens=None, logprobs=None, prompt_logprobs=None, prompt_alternatives=None, stream=False,
    include_usage=False, continuous_usage=False, cache_salt="", is_held=True,
)  # fmt: skip
"""Options of a request that only has prompts."""


class ChatRequest(msgspec.Struct, frozen=True):
    options: Options
    messages: tuple[ChatMessage, ...]
    tool_use: ToolUse = NO_TOOLS
    prompting: Prompting = PLAIN_PROMPTING
    max_thinking_tokens: int | None = None
    """The number of reasoning tokens after which its end is forced; None: the model ends it."""


class CompletionRequest(msgspec.Struct, frozen=True):
    options: Options
    prompts: tuple[str | tuple[int, ...], ...]
    echo: bool


def parse_chat(raw: dict[str, Any], unknown: UnknownFields = UnknownFields.REFUSE) -> ChatRequest:
    """Parse the body of a chat. Raises RefusedError that names the offending field."""
    fields = Fields(raw)
    written = fields.require("messages")
    if unknown is UnknownFields.IGNORE:
        written, dropped = drop_unknown_fields(written)
        for name in dropped:
            fields.report_skipped(name)
    messages = read_messages(written)
    tool_use = read_tool_use(fields)
    budget = read_thinking_budget(fields)
    prompting = read_prompting(fields, messages)
    max_thinking_tokens = fields.integer("max_thinking_tokens", 0, MAX_TOKENS)
    _refuse_chat_features(fields)
    max_tokens = fields.integer("max_completion_tokens", 1, MAX_TOKENS)
    legacy = fields.integer("max_tokens", 1, MAX_TOKENS)
    wants_logprobs = fields.flag("logprobs", False)
    top = fields.integer("top_logprobs", 0, MAX_LOGPROBS)
    if top and not wants_logprobs:
        raise invalid("top_logprobs", "'top_logprobs' needs 'logprobs' to be true.")
    logprobs = (top or 0) if wants_logprobs else None
    options = _options(fields, legacy if max_tokens is None else max_tokens, logprobs, unknown)
    if is_constrained(tool_use):
        check_may_end("tools", options.ignore_eos, options.min_tokens)
    check_held("max_tokens" if max_tokens is None else "max_completion_tokens", options)
    return ChatRequest(
        options, messages, tool_use, prompting, budget if max_thinking_tokens is None else max_thinking_tokens
    )


def parse_completion(raw: dict[str, Any], unknown: UnknownFields = UnknownFields.REFUSE) -> CompletionRequest:
    """Parse the body of a completion. Raises RefusedError that names the offending field."""
    fields = Fields(raw)
    prompts = _prompts(fields.require("prompt"))
    fields.refuse("suffix", "text can only be continued at its end", harmless=("",))
    fields.refuse("prompt_embeds", "prompts are text or token ids")
    echo = fields.flag("echo", False)
    logprobs = fields.integer("logprobs", 0, MAX_LOGPROBS)
    best_of = fields.integer("best_of", 1, MAX_CHOICES)
    max_tokens = fields.integer("max_tokens", 0 if echo else 1, MAX_TOKENS)
    options = _options(fields, 16 if max_tokens is None else max_tokens, logprobs, unknown, echo)
    if echo and options.truncate_prompt_tokens is not None:
        raise unsupported("truncate_prompt_tokens", "'echo' gives the whole prompt back")
    if best_of is not None and best_of != options.n:
        raise unsupported("best_of", "it must equal 'n'")
    check_held("max_tokens", options, len(prompts))
    return CompletionRequest(options, prompts, echo)


def _options(
    fields: Fields, max_tokens: int | None, logprobs: int | None, unknown: UnknownFields, echo: bool = False
) -> Options:
    stream = fields.flag("stream", False)
    prompt_logprobs = fields.integer("prompt_logprobs", 0, MAX_LOGPROBS)
    if prompt_logprobs is not None and stream:
        raise unsupported("prompt_logprobs", "a stream has no field for them; use 'echo' with 'logprobs'")
    alternatives = [count for count in (prompt_logprobs, logprobs if echo else None) if count is not None]
    include_usage, continuous_usage = _stream_options(fields.take("stream_options"), stream)
    options = Options(
        model=check_text(fields.require("model"), "model", 253),
        n=fields.integer("n", 1, MAX_CHOICES) or 1,
        max_tokens=max_tokens,
        min_tokens=fields.integer("min_tokens", 0, MAX_TOKENS) or 0,
        temperature=fields.number("temperature", 0, 2),
        top_p=fields.number("top_p", 0, 1, above_low=True),
        top_k=_top_k(fields.integer("top_k", -1, MAX_TOKEN_ID)),
        min_p=fields.number("min_p", 0, 1),
        presence_penalty=fields.number("presence_penalty", -2, 2) or 0.0,
        frequency_penalty=fields.number("frequency_penalty", -2, 2) or 0.0,
        repetition_penalty=fields.number("repetition_penalty", 0, 10, above_low=True),
        logit_bias=_logit_bias(fields.take("logit_bias")),
        seed=fields.integer("seed", -(1 << 63), (1 << 63) - 1),
        stop=_stops(fields.take("stop")),
        stop_token_ids=_stop_ids(fields.take("stop_token_ids")),
        ignore_eos=fields.flag("ignore_eos", False),
        skip_special_tokens=fields.flag("skip_special_tokens", True),
        include_stop_str_in_output=fields.flag("include_stop_str_in_output", False),
        truncate_prompt_tokens=_truncation(fields.integer("truncate_prompt_tokens", -1, MAX_TOKENS)),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        prompt_alternatives=max(alternatives, default=None),
        stream=stream,
        is_held=not stream,
        include_usage=include_usage,
        continuous_usage=continuous_usage,
        cache_salt=fields.text("cache_salt", 64) or "",
        output_format=read_output_format(fields),
        returns_token_ids=fields.flag("return_token_ids", False),
        prompt_cache_key=fields.peek_text("prompt_cache_key"),
        echoes_tier=fields.peek("service_tier") is not None,
        priority=read_priority(fields),
    )
    if options.output_format is not None:
        check_may_end(options.output_format.field, options.ignore_eos, options.min_tokens)
    fields.ignore(*_IGNORED, max_bytes=MAX_IGNORED_BYTES)
    for name, reason, harmless in _NOT_SERVED:
        fields.refuse(name, reason, harmless)
    if ignored := fields.end(unknown):
        options = msgspec.structs.replace(options, ignored=ignored)
    if options.max_tokens is not None and options.min_tokens > options.max_tokens:
        raise invalid("min_tokens", f"'min_tokens' must not exceed 'max_tokens' ({options.max_tokens}).")
    return options


def read_plain_options(fields: Fields, unknown: UnknownFields) -> Options:
    """Read the options of a request without an answer, and refuse the fields that are left."""
    model = check_text(fields.require("model"), "model", 253)
    truncation = _truncation(fields.integer("truncate_prompt_tokens", -1, MAX_TOKENS))
    fields.ignore(*_IGNORED, max_bytes=MAX_IGNORED_BYTES)
    priority = read_priority(fields)
    options = msgspec.structs.replace(_NO_ANSWER, model=model, truncate_prompt_tokens=truncation, priority=priority)
    return msgspec.structs.replace(options, ignored=fields.end(unknown))


def check_held(field: str, options: Options, prompts: int = 1) -> None:
    """Check an answer that is held. Raises RefusedError if it may become too large. `field`: that of `max_tokens`."""
    if options.is_held and options.max_tokens is not None:
        check_answer(field, options.max_tokens, prompts, options.n, options.logprobs)


def _refuse_chat_features(fields: Fields) -> None:
    fields.refuse("modalities", "only text is available", harmless=(["text"],))
    fields.refuse("verbosity", "models do not know it; ask for it in the prompt", harmless=("medium",))
    fields.refuse("transforms", "a conversation is used as it was sent", harmless=([],))
    for name in ("audio", "web_search_options", "prediction"):
        fields.refuse(name, "it is not available for this model")


def _prompts(value: Any) -> tuple[str | tuple[int, ...], ...]:
    if isinstance(value, str):
        return (check_text(value, "prompt", MAX_TEXT_CHARS),)
    if not isinstance(value, list):
        raise wrong_type("prompt", "a string, a list of strings, a list of token ids, or a list of such lists")
    if not value:
        raise invalid("prompt", "'prompt' must not be an empty list.")
    if isinstance(value[0], str | list):
        if len(value) > MAX_PROMPTS:
            raise invalid(
                "prompt", f"'prompt' has {len(value)} entries; at most {MAX_PROMPTS} are allowed.", "too_long"
            )
        return tuple(_one_prompt(entry, f"prompt[{index}]") for index, entry in enumerate(value))
    return (read_token_ids(value, "prompt"),)


def _one_prompt(value: Any, path: str) -> str | tuple[int, ...]:
    if isinstance(value, str):
        return check_text(value, path, MAX_TEXT_CHARS)
    if isinstance(value, list):
        return read_token_ids(value, path)
    raise wrong_type(path, "a string or a list of token ids")


def read_token_ids(value: Any, path: str) -> tuple[int, ...]:
    """Read at least one token id. Raises RefusedError."""
    if not isinstance(value, list):
        raise wrong_type(path, "a list of token ids")
    if not value:
        raise invalid(path, f"'{path}' must not be empty.")
    if set(map(type, value)) == {int} and min(value) >= 0 and max(value) <= MAX_TOKEN_ID:
        return tuple(value)
    return tuple(check_integer(token, f"{path}[{index}]", 0, MAX_TOKEN_ID) for index, token in enumerate(value))


def _stops(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    is_one = isinstance(value, str)
    stops = [value] if is_one else value
    if not isinstance(stops, list):
        raise wrong_type("stop", "a string or a list of strings")
    if len(stops) > MAX_STOPS:
        raise invalid("stop", f"'stop' has {len(stops)} entries; at most {MAX_STOPS} are allowed.", "too_long")
    return tuple(_stop(stop, "stop" if is_one else f"stop[{index}]") for index, stop in enumerate(stops))


def _stop(value: Any, name: str) -> str:
    text = check_text(value, name, MAX_STOP_BYTES)
    if not 1 <= len(text.encode()) <= MAX_STOP_BYTES:
        raise invalid(name, f"'{name}' must be 1 to {MAX_STOP_BYTES} bytes long.", "out_of_range")
    return text


def _stop_ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise wrong_type("stop_token_ids", "a list of token ids")
    if len(value) > MAX_STOP_IDS:
        raise invalid("stop_token_ids", f"'stop_token_ids' may have at most {MAX_STOP_IDS} entries.", "too_long")
    return tuple(check_integer(token, f"stop_token_ids[{p}]", 0, MAX_TOKEN_ID) for p, token in enumerate(value))


def _logit_bias(value: Any) -> tuple[tuple[int, float], ...]:
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise wrong_type("logit_bias", "an object of token ids to numbers")
    if len(value) > MAX_LOGIT_BIAS:
        raise invalid("logit_bias", f"'logit_bias' may have at most {MAX_LOGIT_BIAS} entries.", "too_long")
    given = ((token, bias) for token, bias in value.items() if bias is not None)
    return tuple((_bias_id(token), check_number(bias, "logit_bias", -100, 100)) for token, bias in given)


def _bias_id(token: str) -> int:
    """Read a key of `logit_bias`. Leading zeros are refused: "01" would be "1" a second time."""
    if _TOKEN_ID.fullmatch(token) is None or int(token) > MAX_TOKEN_ID:
        allowed = f"must be 0 to {MAX_TOKEN_ID}, without leading zeros"
        raise invalid("logit_bias", f"'logit_bias' has a key that is not a token id: {token[:32]!r}; {allowed}.")
    return int(token)


def _truncation(value: int | None) -> int | None:
    if value == 0:
        raise invalid("truncate_prompt_tokens", "'truncate_prompt_tokens' must be -1 or at least 1.", "out_of_range")
    return value


def _top_k(value: int | None) -> int | None:
    """Read `top_k`: 0 and -1 mean "off" in other servers."""
    return None if value is None else max(value, 0)


def _stream_options(value: Any, stream: bool) -> tuple[bool, bool]:
    """Read `include_usage`, and `continuous_usage_stats`, which has no effect without it."""
    if value is None:
        return False, False
    if not stream:
        raise invalid("stream_options", "'stream_options' needs 'stream' to be true.")
    if not isinstance(value, dict):
        raise wrong_type("stream_options", "an object")
    fields = Fields(value, "stream_options.")
    include_usage = fields.flag("include_usage", False)
    continuous = fields.flag("continuous_usage_stats", False)
    fields.flag("include_obfuscation", False)
    fields.end()
    return include_usage, include_usage and continuous
