"""`/tokenize` and `/detokenize` in vLLM's form, and `count_tokens`: tokens of a text, without running the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

import msgspec

from baton_gateway import errors
from baton_gateway.answers.tool_use import NO_TOOLS, ToolUse
from baton_gateway.errors import RefusedError, invalid
from baton_gateway.helper_processes.tenant_threads import TenantThreads
from baton_gateway.http_api.model_names import ModelNames
from baton_gateway.http_api.rate_limits import check_model
from baton_gateway.openai_api.answer_writers import ChargeMemory
from baton_gateway.openai_api.chat_messages import ChatMessage, read_messages
from baton_gateway.openai_api.openai_fields import MAX_TEXT_CHARS, Fields
from baton_gateway.openai_api.openai_types import ChatRequest, read_token_ids
from baton_gateway.openai_api.prompting_fields import PLAIN_PROMPTING, Prompting, read_prompting
from baton_gateway.openai_api.tool_fields import read_tool_use
from baton_gateway.requests.preparing import build_conversation, chat_prompt, chat_room, check_ids
from baton_gateway.requests.prompt_builder import limits_for
from baton_gateway.requests.tenant import Tenant
from baton_gateway.text.bundle import SPECIAL_NAMES
from baton_gateway.text.encoding import PromptEncoder, PromptText
from baton_gateway.text.revision_text import TextModel
from baton_gateway.text.template_renderer import TemplateRenderer
from baton_gateway.workers.linked_workers import WorkerTable
from baton_gateway.workers.request_limits import ModelLimits
from baton_gateway.workers.start_up import explain_missing
from baton_wire.messages.values import PACKED_ID_BYTES, unpack_ids

MAX_QUERY_FIELDS = 8
MAX_AT_ONCE = 256
"""The most requests of one holder that run or wait here."""

_encode = msgspec.json.Encoder().encode
INLINE_TOKENS = 4_096
"""Fewer tokens are encoded on the event loop: about 1 ms."""
ID_BYTES, STRING_BYTES = 48, 128
"""Bytes of a token of an answer while it is encoded: with its id alone, and with its text too."""


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    """A text to tokenise, or a chat for the model's template."""

    model: str | None
    """None: the only served model."""
    content: str | tuple[ChatMessage, ...]
    adds_special_tokens: bool
    wants_strings: bool
    tool_use: ToolUse = NO_TOOLS
    prompting: Prompting = PLAIN_PROMPTING


@dataclass(frozen=True, slots=True)
class DetokenizeRequest:
    model: str | None
    tokens: tuple[int, ...]


def parse_tokenize(raw: dict[str, Any]) -> TokenizeRequest:
    """Parse the body of `/tokenize`. Raises RefusedError that names the offending field."""
    fields = Fields(raw)
    model = fields.text("model", 253)
    prompt, messages = fields.text("prompt", MAX_TEXT_CHARS), fields.take("messages")
    if (prompt is None) == (messages is None):
        raise invalid("prompt", "One of 'prompt' and 'messages' is required, not both.", "missing_required_parameter")
    adds_special_tokens = fields.flag("add_special_tokens", prompt is not None)
    wants_strings = fields.flag("return_token_strs", False)
    content = read_messages(messages) if prompt is None else prompt
    tool_use, prompting = read_tool_use(fields), read_prompting(fields, () if isinstance(content, str) else content)
    fields.end()
    if prompt is not None and (tool_use, prompting) != (NO_TOOLS, PLAIN_PROMPTING):
        raise invalid("prompt", "Tools and options of chat templates need 'messages'.")
    return TokenizeRequest(model, content, adds_special_tokens, wants_strings, tool_use, prompting)


def parse_detokenize(raw: dict[str, Any]) -> DetokenizeRequest:
    """Parse the body of `/detokenize`. Raises RefusedError that names the offending field."""
    fields = Fields(raw)
    model = fields.text("model", 253)
    tokens = read_token_ids(fields.require("tokens"), "tokens")
    fields.end()
    return DetokenizeRequest(model, tokens)


class Tokenising:
    """Tokenises and detokenises with the tokenizers of the linked workers' models."""

    def __init__(
        self, table: WorkerTable, names: ModelNames, templates: TemplateRenderer, encoder: PromptEncoder
    ) -> None:
        self._table = table
        self._names = names
        self._templates = templates
        self._encoder = encoder
        self._num_running: Counter[str] = Counter()
        self._assembling = TenantThreads("tokens")

    @contextmanager
    def slot(self, holder: str, tenant: Tenant) -> Iterator[None]:
        """Occupy one of the slots of a holder. Raises RefusedError if all are taken, since this is no second queue."""
        if self._num_running[holder] >= min(tenant.max_queued or MAX_AT_ONCE, MAX_AT_ONCE):
            raise RefusedError(errors.queue_full(1))
        self._num_running[holder] += 1
        try:
            yield
        finally:
            self._num_running[holder] -= 1
            if not self._num_running[holder]:
                del self._num_running[holder]

    async def tokenize(self, raw: dict[str, Any], tenant: Tenant, charge: ChargeMemory) -> bytes:
        """Return the answer's body. Raises RefusedError, also for a text of far more tokens than the context holds."""
        request = parse_tokenize(raw)
        text, limits = self._find_model(request.model, tenant)
        if isinstance(request.content, str):
            is_rendered = not request.adds_special_tokens
            prompt = PromptText(text, request.content, is_rendered, limits.max_context_tokens, "prompt")
        else:
            chat = build_conversation(request.content, request.tool_use, request.prompting)
            rendered = await self._templates.render(text.bundle, chat, tenant.name, chat_room(text, limits))
            prompt = chat_prompt(rendered, text, limits, request.adds_special_tokens)
        [packed] = await self._encoder.encode([prompt], tenant.name)
        tokens = len(packed) // PACKED_ID_BYTES
        if not charge(tokens * (STRING_BYTES if request.wants_strings else ID_BYTES)):
            raise RefusedError(errors.out_of_memory())
        arguments = packed, text, limits.max_context_tokens, request.wants_strings
        if tokens <= INLINE_TOKENS:
            return _tokens_body(*arguments)
        return await self._assembling.run(tenant.name, _tokens_body, *arguments)

    async def count(self, request: ChatRequest, tenant: Tenant) -> int:
        """Return the number of tokens of a chat's prompt. Raises RefusedError."""
        text, limits = self._find_model(request.options.model, tenant)
        chat = build_conversation(request.messages, request.tool_use, request.prompting)
        rendered = await self._templates.render(text.bundle, chat, tenant.name, chat_room(text, limits))
        [packed] = await self._encoder.encode([chat_prompt(rendered, text, limits)], tenant.name)
        return len(packed) // PACKED_ID_BYTES

    def info(self, target: str, tenant: Tenant) -> bytes:
        """Return the answer of `/tokenizer_info`: template, special tokens and context, as evaluation clients ask for
        them. `target`: with `?model=`, where several are served. Raises RefusedError."""
        try:
            names = parse_qs(target.partition("?")[2], max_num_fields=MAX_QUERY_FIELDS).get("model", [])
        except ValueError:
            raise invalid("model", f"At most {MAX_QUERY_FIELDS} query fields are allowed.", "bad_request") from None
        text, limits = self._find_model(names[0] if names else None, tenant)
        bundle = text.bundle
        special = {name: bundle.special_tokens.get(name) for name in SPECIAL_NAMES}
        return _encode(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                **special,
                "chat_template": bundle.chat_template,
                "model_max_length": limits.max_context_tokens,
            }
        )

    async def detokenize(self, raw: dict[str, Any], tenant: Tenant, charge: ChargeMemory) -> bytes:
        """Return the answer's body. Raises RefusedError."""
        request = parse_detokenize(raw)
        text, limits = self._find_model(request.model, tenant)
        check_ids(request.tokens, limits, "tokens")
        if not charge(len(request.tokens) * STRING_BYTES):
            raise RefusedError(errors.out_of_memory())
        return _encode({"prompt": await self._encoder.decode(text, request.tokens, "tokens", tenant.name)})

    def _find_model(self, model: str | None, tenant: Tenant) -> tuple[TextModel, ModelLimits]:
        """Return text and limits of a model that some worker serves, for a tenant. Raises RefusedError."""
        served = self._table.served_names()
        if not served:
            raise RefusedError(explain_missing(self._table))
        name = served[0] if model is None and len(served) == 1 else model
        if name is None:
            raise invalid("model", "'model' is required: several models are served.", "missing_required_parameter")
        check_model(tenant, self._names.served(name))
        model_text = self._table.text_of(self._names.served(name))
        if model_text is None:
            raise RefusedError(errors.model_not_found(name, list(self._names.list_names())))
        text, limits = model_text
        return text, limits_for(tenant, limits)


def _tokens_body(packed: bytes, text: TextModel, max_context_tokens: int, wants_strings: bool) -> bytes:
    ids = unpack_ids(packed)
    strings = [text.token_text(token) for token in ids] if wants_strings else None
    return _encode({"count": len(ids), "max_model_len": max_context_tokens, "tokens": ids, "token_strs": strings})
