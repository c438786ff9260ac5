"""Turns an admitted request into the prompts of a model revision: renders, tokenises, compiles its grammar.

Rendering, tokenising and compiling run in helper processes; what depends on the model alone is decided in `preparing`.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from dataclasses import replace

from baton_gateway.errors import RefusedError
from baton_gateway.openai_api.answer_bounds import token_bytes
from baton_gateway.openai_api.openai_types import ApiEndpoint, ChatRequest
from baton_gateway.openai_api.response_encoding import AnswerHead, ResponseHead
from baton_gateway.reporting.metrics import GatewayMetrics
from baton_gateway.requests.live_request import LiveRequest, answer_bytes
from baton_gateway.requests.preparing import (
    Preparation,
    PromptRules,
    bind_thought,
    build_conversation,
    chat_prompt,
    chat_room,
    completion_prompts,
    make_prompts,
    plan_parsing,
)
from baton_gateway.requests.request_events import Prompt
from baton_gateway.requests.scored_prompts import echoed_prompts
from baton_gateway.requests.tenant import Tenant
from baton_gateway.structured_outputs.format_compiler import FormatCompiler
from baton_gateway.structured_outputs.output_format import OutputFormat
from baton_gateway.text.encoding import PromptEncoder
from baton_gateway.text.generation_defaults import API_DEFAULTS
from baton_gateway.text.revision_text import TextModel
from baton_gateway.text.template_renderer import TemplateRenderer
from baton_gateway.workers.linked_workers import WorkerTable
from baton_gateway.workers.request_limits import ModelLimits
from baton_wire.messages.values import Grammar, PairFingerprint, Thought
from baton_wire.rules.prefix_digests import PromptPlaces


class PromptBuilder:
    """Builds prompts with the text side of the linked workers' revisions."""

    def __init__(
        self, table: WorkerTable, templates: TemplateRenderer, metrics: GatewayMetrics, dice: random.Random
    ) -> None:
        """`dice` draw the seeds of requests that bring none."""
        self._table = table
        self._metrics = metrics
        self._dice = dice
        self.templates = templates
        self.encoder = PromptEncoder()
        self.compiler = FormatCompiler(metrics.shaped)

    async def build(self, live: LiveRequest, fingerprint: PairFingerprint, rules: PromptRules) -> tuple[Prompt, ...]:
        """Prepare the request for this revision and begin its answer. Raises RefusedError."""
        request, options = live.request, live.request.options
        text, limits = self._table.text(fingerprint), self._table.limits(fingerprint)
        assert text is not None
        assert limits is not None
        limits = limits_for(live.tenant, limits)
        encoded, grammar = await self._encode_and_compile(live, text, limits)
        thought: Thought | None = None
        if isinstance(request, ChatRequest):
            thought = bind_thought(live.parse_plan, request.max_thinking_tokens, grammar is not None, text)
        seed = self._dice.getrandbits(63)
        defaults = text.bundle.generation if rules.generation_defaults else API_DEFAULTS
        preparation = Preparation(
            options, live.prompt_field, text, limits, defaults, seed, live.tenant.salt, rules.clamps_max_tokens
        )
        prompts = make_prompts(preparation, encoded, grammar, thought)
        echoed = await echoed_prompts(request, text)
        live.text, live.fingerprint, live.prompts = text, fingerprint, prompts
        live.places = tuple(PromptPlaces(prompt.packed, prompt.salt) for prompt in prompts)
        live.begin_texts(echoed)
        self._metrics.telemetry.branched(len(live.texts) - 1)
        live.writer.begin(_answer_head(live, text, fingerprint, prompts))
        return prompts

    async def _encode_and_compile(
        self, live: LiveRequest, text: TextModel, limits: ModelLimits
    ) -> tuple[list[bytes], Grammar | None]:
        shape = live.request.options.output_format
        if shape is not None and not (isinstance(live.request, ChatRequest) and live.request.tool_use.callable):
            return await self._encode_while_compiling(live, shape, text, limits)
        encoded = await self._encode(live, text, limits)
        if live.parse_plan is None or live.parse_plan.output_format is None:
            return encoded, None
        return encoded, await self.compiler.compile(live.parse_plan.output_format, live.tenant.name, live.unenforced)

    async def _encode_while_compiling(
        self, live: LiveRequest, shape: OutputFormat, text: TextModel, limits: ModelLimits
    ) -> tuple[list[bytes], Grammar]:
        """Both at once: a format that the client asks for does not need the prompt. Raises the first RefusedError."""
        try:
            async with asyncio.TaskGroup() as both:
                compiling = both.create_task(self.compiler.compile(shape, live.tenant.name, live.unenforced))
                encoded = await self._encode(live, text, limits)
        except* RefusedError as refusals:
            raise refusals.exceptions[0] from None
        return encoded, compiling.result()

    async def _encode(self, live: LiveRequest, text: TextModel, limits: ModelLimits) -> list[bytes]:
        request, tenant = live.request, live.tenant.name
        if not isinstance(request, ChatRequest):
            return await self.encoder.encode(completion_prompts(request, text, limits), tenant)
        conversation = build_conversation(request.messages, request.tool_use, request.prompting)
        rendered = await self.templates.render(text.bundle, conversation, tenant, chat_room(text, limits))
        live.parse_plan = plan_parsing(request, rendered, text.answer_format)
        return await self.encoder.encode([chat_prompt(rendered, text, limits)], tenant)


def limits_for(tenant: Tenant, limits: ModelLimits) -> ModelLimits:
    """The limits of a model for a tenant, whose context may be shorter."""
    most = tenant.limits.max_context_tokens
    return limits if most is None or most >= limits.max_context_tokens else replace(limits, max_context_tokens=most)


def _answer_head(
    live: LiveRequest, text: TextModel, fingerprint: PairFingerprint, prompts: tuple[Prompt, ...]
) -> AnswerHead:
    request, options = live.request, live.request.options
    is_chat = isinstance(request, ChatRequest)
    head = ResponseHead(
        endpoint=ApiEndpoint.CHAT if is_chat else ApiEndpoint.COMPLETIONS,
        id=("chatcmpl-" if is_chat else "cmpl-") + secrets.token_hex(12),
        created=int(time.time()),
        model=options.alias or options.model,
        system_fingerprint=f"fp_{fingerprint.model_hash[:12]}",
    )
    return AnswerHead(
        head,
        text,
        num_choices=len(live.texts),
        include_usage=options.include_usage,
        continuous_usage=options.continuous_usage,
        prompt_tokens=sum(prompt.num_tokens for prompt in prompts),
        wants_logprobs=options.logprobs is not None,
        is_held=options.is_held,
        ahead_bytes=answer_bytes(request, prompts),
        token_bytes=token_bytes(options.logprobs),
        prompt_ids=tuple(prompt.packed for prompt in prompts) if options.returns_token_ids else None,
    )
