"""Turns an admitted request into the prompts of a model revision: renders, tokenises, compiles its grammar.

Rendering, tokenising and compiling run in helper processes; what depends on the model alone is decided in `preparing`.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time

import msgspec

from baton_gateway.errors import RefusedError, invalid
from baton_gateway.openai_api.answer_bounds import token_bytes
from baton_gateway.openai_api.encoding_answers import answer_size
from baton_gateway.openai_api.encoding_types import EncodeRequest
from baton_gateway.openai_api.openai_types import ApiEndpoint, ChatRequest
from baton_gateway.openai_api.response_encoding import AnswerHead, ResponseHead
from baton_gateway.records.trail import Moment
from baton_gateway.reporting.metrics import GatewayMetrics
from baton_gateway.requests.encode_plan import JUDGEMENTS, EncodePlan, Scoring, cut_text, is_over, plan_encoding
from baton_gateway.requests.live_request import LiveRequest, answer_bytes
from baton_gateway.requests.preparing import (
    Preparation,
    PromptRules,
    bind_thought,
    build_conversation,
    chat_prompt,
    chat_room,
    completion_prompts,
    encoded_texts,
    make_encoded_prompts,
    make_prompts,
    plan_parsing,
)
from baton_gateway.requests.request_events import Prompt
from baton_gateway.requests.scored_prompts import echoed_prompts
from baton_gateway.requests.tenant import Tenant
from baton_gateway.structured_outputs.format_compiler import FormatCompiler
from baton_gateway.structured_outputs.output_format import OutputFormat
from baton_gateway.text.encoding import PromptEncoder, PromptText
from baton_gateway.text.generation_defaults import API_DEFAULTS
from baton_gateway.text.revision_text import TextModel
from baton_gateway.text.template_renderer import TemplateRenderer
from baton_gateway.workers.linked_workers import WorkerTable
from baton_gateway.workers.request_limits import ModelLimits
from baton_wire.messages.values import Grammar, PairFingerprint, Thought, unpack_ids
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
        if isinstance(request, EncodeRequest):
            return await self._build_encoded(live, request, fingerprint, text, limits)
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
        live.answer = secrets.token_hex(12)
        live.writer.begin(_answer_head(live, text, fingerprint, prompts))
        return prompts

    async def _build_encoded(
        self,
        live: LiveRequest,
        request: EncodeRequest,
        fingerprint: PairFingerprint,
        text: TextModel,
        limits: ModelLimits,
    ) -> tuple[Prompt, ...]:
        """Prepare prompts that are encoded. Raises RefusedError."""
        allowed = self._table.encoding(fingerprint)
        assert allowed is not None, "the revision was chosen among those that encode"
        plan, tenant = plan_encoding(request, allowed, text.bundle), live.tenant.name
        packed = []
        for texts, field in zip(plan.inputs, plan.fields, strict=True):
            parts = encoded_texts(texts, text, limits, field)
            packed.append(b"".join(await self.encoder.encode(parts, tenant)))
        if plan.longest is not None and is_over(plan, packed):
            empty = PromptText(text, "", False, limits.max_context_tokens, "input")
            frame = b"".join(await self.encoder.encode([empty], tenant))
            packed = [cut_text(ids, frame, plan.longest) for ids in packed]
        encoding = plan.encoding
        if plan.scoring is Scoring.JUDGEMENT:
            encoding = msgspec.structs.replace(encoding, token_ids=await self._judgement_ids(text, limits, tenant))
        prompts = make_encoded_prompts(request, plan, packed, encoding, limits)
        live.text, live.fingerprint, live.prompts, live.encoding = text, fingerprint, prompts, plan
        self._metrics.telemetry.branched(len(prompts) - 1)
        live.answer = secrets.token_hex(12)
        live.writer.begin(_encoding_head(live, request, text, fingerprint, plan))
        return prompts

    async def _judgement_ids(self, text: TextModel, limits: ModelLimits, tenant: str) -> tuple[int, ...]:
        """The ids of JUDGEMENTS. Raises RefusedError for a model that has no such tokens."""
        words = [PromptText(text, word, True, limits.max_context_tokens, "model") for word in JUDGEMENTS]
        ids = [unpack_ids(packed) for packed in await self.encoder.encode(words, tenant)]
        if any(len(token_ids) != 1 for token_ids in ids):
            raise invalid("model", "This model has no tokens for 'no' and 'yes', by which pairs are ranked.")
        return tuple(token for (token,) in ids)

    async def _encode_and_compile(
        self, live: LiveRequest, text: TextModel, limits: ModelLimits
    ) -> tuple[list[bytes], Grammar | None]:
        shape = live.request.options.output_format
        if shape is not None and not (isinstance(live.request, ChatRequest) and live.request.tool_use.callable):
            return await self._encode_while_compiling(live, shape, text, limits)
        encoded = await self._encode(live, text, limits)
        if live.parse_plan is None or live.parse_plan.output_format is None:
            return encoded, None
        return encoded, await self._compile(live, live.parse_plan.output_format)

    async def _encode_while_compiling(
        self, live: LiveRequest, shape: OutputFormat, text: TextModel, limits: ModelLimits
    ) -> tuple[list[bytes], Grammar]:
        """Both at once: a format that the client asks for does not need the prompt. Raises the first RefusedError."""
        try:
            async with asyncio.TaskGroup() as both:
                compiling = both.create_task(self._compile(live, shape))
                encoded = await self._encode(live, text, limits)
        except ExceptionGroup as group:  # what except* raises is in a group again before Python 3.11.4
            refusal = next((error for error in group.exceptions if isinstance(error, RefusedError)), None)
            if refusal is None or group.split(RefusedError)[1] is not None:
                raise
            raise refusal from None
        return encoded, compiling.result()

    async def _encode(self, live: LiveRequest, text: TextModel, limits: ModelLimits) -> list[bytes]:
        request, tenant = live.request, live.tenant.name
        if not isinstance(request, ChatRequest):
            encoded = await self.encoder.encode(completion_prompts(request, text, limits), tenant)
            live.note(Moment.TOKENISED)
            return encoded
        conversation = build_conversation(request.messages, request.tool_use, request.prompting)
        rendered = await self.templates.render(text.bundle, conversation, tenant, chat_room(text, limits))
        live.note(Moment.RENDERED)
        live.parse_plan = plan_parsing(request, rendered, text.answer_format)
        encoded = await self.encoder.encode([chat_prompt(rendered, text, limits)], tenant)
        live.note(Moment.TOKENISED)
        return encoded

    async def _compile(self, live: LiveRequest, shape: OutputFormat) -> Grammar:
        grammar = await self.compiler.compile(shape, live.tenant.name, live.unenforced)
        live.note(Moment.COMPILED)
        return grammar


def limits_for(tenant: Tenant, limits: ModelLimits) -> ModelLimits:
    """The limits of a model for a tenant, whose context may be shorter."""
    most = tenant.limits.max_context_tokens
    if most is None or most >= limits.max_context_tokens:
        return limits
    return msgspec.structs.replace(limits, max_context_tokens=most)


def _encoding_head(
    live: LiveRequest, request: EncodeRequest, text: TextModel, fingerprint: PairFingerprint, plan: EncodePlan
) -> AnswerHead:
    head = ResponseHead(
        endpoint=ApiEndpoint.COMPLETIONS,
        id=f"{request.task.value}-{live.answer}",
        created=int(time.time()),
        model=request.options.alias or request.options.model,
        system_fingerprint=f"fp_{fingerprint.model_hash[:12]}",
    )
    return AnswerHead(
        head,
        text,
        num_choices=len(live.prompts),
        include_usage=False,
        continuous_usage=False,
        prompt_tokens=sum(prompt.num_tokens for prompt in live.prompts),
        wants_logprobs=False,
        is_held=True,
        ahead_bytes=answer_size(request, len(live.prompts), plan.width),
    )


def _answer_head(
    live: LiveRequest, text: TextModel, fingerprint: PairFingerprint, prompts: tuple[Prompt, ...]
) -> AnswerHead:
    request, options = live.request, live.request.options
    is_chat = isinstance(request, ChatRequest)
    head = ResponseHead(
        endpoint=ApiEndpoint.CHAT if is_chat else ApiEndpoint.COMPLETIONS,
        id=("chatcmpl-" if is_chat else "cmpl-") + live.answer,
        created=int(time.time()),
        model=options.alias or options.model,
        system_fingerprint=f"fp_{fingerprint.model_hash[:12]}",
        priority=live.tenant.grant(options.priority) if options.echoes_tier else None,
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
