"""Jobs of a batch: from a request to the engine's sequences, and from tokens to the answer. Parsing, chat templates,
text and response bodies are the gateway's, without a gateway.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from baton_engine.scheduling.events import Drawn, PromptScored, SequenceSpec
from baton_gateway.answers.parse_plan import ParsePlan
from baton_gateway.batches.lines import EMBEDDINGS, BadLine, BatchLine, answer_line
from baton_gateway.errors import Problem, internal_error, model_not_found, task_not_served, unsupported
from baton_gateway.errors import RefusedError as RefusedRequestError
from baton_gateway.openai_api.collected_message import CollectedMessage
from baton_gateway.openai_api.encoding_types import parse_embedding
from baton_gateway.openai_api.json_pieces import GrowingText
from baton_gateway.openai_api.logprob_json import CompletionLogprobs, LogprobsJson, logprobs_json
from baton_gateway.openai_api.openai_types import (
    ApiEndpoint,
    ChatRequest,
    CompletionRequest,
    parse_chat,
    parse_completion,
)
from baton_gateway.openai_api.response_encoding import (
    AnswerHead,
    FinishedChoice,
    ResponseHead,
    Usage,
    error_body,
    response_body,
)
from baton_gateway.requests.encode_plan import cut_text, is_over, plan_encoding
from baton_gateway.requests.preparing import (
    Preparation,
    begin_choice_texts,
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
from baton_gateway.requests.scored_prompts import ScoredPrompts, echoes
from baton_gateway.structured_outputs.format_compiler import FormatCompiler
from baton_gateway.text.choice_text import ChoiceText, Increment
from baton_gateway.text.encoding import PromptText, encode_prompt
from baton_gateway.text.generation_defaults import API_DEFAULTS
from baton_gateway.text.revision_text import TextModel
from baton_gateway.text.template_renderer import TemplateRenderer
from baton_gateway.workers.request_limits import ModelLimits
from baton_local.batch.encoding_job import EncodingJob
from baton_wire.messages.encoding import EncodingLimits
from baton_wire.messages.values import Finish, Grammar, RequestKey

ATTEMPT = 1


@dataclass(slots=True)
class _Choice:
    text: ChoiceText
    logprobs: LogprobsJson | None
    answer: CollectedMessage = field(default_factory=CollectedMessage)
    drawn: int = 0
    finish: str | None = None


class Job:
    """One request while its tokens arrive: it takes the engine's events and builds the response body at the end."""

    def __init__(
        self,
        custom_id: str,
        request: ChatRequest | CompletionRequest,
        prompts: Sequence[Prompt],
        head: ResponseHead,
        text: TextModel,
        plan: ParsePlan | None = None,
    ) -> None:
        self.custom_id = custom_id
        self._options = request.options
        self._prompts = tuple(prompts)
        self._head = head
        self._text = text
        self._base = hashlib.blake2b(custom_id.encode(), digest_size=12).digest()
        self._echoes = echoes(request, text)
        self._scores = ScoredPrompts(self._prompts, self._options, text, bool(self._echoes))
        options, echoed = self._options, self._echoes or ("",) * len(self._prompts)
        answers = [CollectedMessage(GrowingText(echo)) for echo in echoed for _ in range(options.n)]
        self._choices = [
            _Choice(choice_text, None if options.logprobs is None else logprobs_json(head.endpoint, text), answer)
            for choice_text, answer in zip(begin_choice_texts(request, text, plan, echoed), answers, strict=True)
        ]
        self._open = set(range(len(self._choices)))

    def specs(self, deadline_s: float) -> tuple[SequenceSpec, ...]:
        """The sequences of the job, one for each prompt."""
        choices = tuple(range(self._options.n))
        return tuple(
            SequenceSpec(
                RequestKey(self._base + number.to_bytes(4, "big"), ATTEMPT),
                tuple(prompt.ids()),
                prompt.num_tokens,
                choices,
                prompt.sampling,
                prompt.salt,
                deadline_s,
            )
            for number, prompt in enumerate(self._prompts)
        )

    def take(self, event: Drawn) -> bool:
        """Take the next tokens of a choice. True: a stop string ended it, and the engine can cancel it."""
        prompt, options = _prompt_of(event.key), self._options
        number = prompt * options.n + event.choice
        choice = self._choices[number]
        if choice.finish is not None:
            return False
        echo = self._scores.echo(prompt) if event.first_index == 0 else None
        if echo is not None and isinstance(choice.logprobs, CompletionLogprobs):
            choice.logprobs.add_encoded(echo)
        if options.max_tokens == 0:
            increment = Increment("", finish=Finish.LENGTH)
        else:
            increment = choice.text.push(event.ids, event.logprobs, event.finish)
            choice.drawn += len(event.ids)
        choice.answer.add(increment.output_parts)
        if choice.logprobs is not None:
            choice.logprobs.add(increment.tokens)
        if increment.finish is not None:
            choice.finish = increment.finish_reason
            self._open.discard(number)
        return increment.stopped_after is not None

    def score(self, event: PromptScored) -> None:
        """Take the log probabilities of a prompt's tokens; all come before its first drawn token."""
        self._scores.take(_prompt_of(event.key), event.first_index, event.logprobs)

    @property
    def is_done(self) -> bool:
        return not self._open

    @property
    def usage(self) -> Usage:
        return Usage(sum(prompt.num_tokens for prompt in self._prompts), sum(choice.drawn for choice in self._choices))

    def body(self) -> bytes:
        """The response of a done job."""
        finished = [
            FinishedChoice(choice.answer, choice.logprobs, choice.finish, self._scores.of(number // self._options.n))
            for number, choice in enumerate(self._choices)
            if choice.finish is not None
        ]
        return b"".join(response_body(self._head, finished, self.usage))


def _prompt_of(key: RequestKey) -> int:
    return int.from_bytes(key.request[-4:], "big")


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer to a line that the engine does not compute."""

    line: bytes
    """The line for the output file."""

    @staticmethod
    def of(custom_id: str, problem: Problem) -> Refusal:
        return Refusal(answer_line(custom_id, problem.status, error_body(problem)))


class Desk:
    """Turns lines into jobs for one model."""

    def __init__(  # noqa: PLR0913 - what one model and its engine allow
        self,
        text: TextModel,
        limits: ModelLimits,
        names: Sequence[str],
        model_hash: str,
        max_choices: int,
        created: int,
        generation_defaults: bool = True,
        encoding: EncodingLimits | None = None,
    ) -> None:
        """`names`: model names that requests may use. `created`: seconds since 1970, for the answers.
        `generation_defaults`: False ignores the model's generation_config.json. `encoding`: what the engine makes of
        prompts besides answers.
        """
        self._defaults = text.bundle.generation if generation_defaults else API_DEFAULTS
        self._text = text
        self._limits = limits
        self._names = tuple(names)
        self._model_hash = model_hash
        self._max_choices = max_choices
        self._encoding = encoding
        self._created = created
        self._templates = TemplateRenderer()
        self._compiler = FormatCompiler()

    async def stop(self) -> None:
        await asyncio.gather(self._templates.stop(), self._compiler.stop())

    async def job(self, line: BatchLine | BadLine) -> Job | EncodingJob | Refusal:
        """The job of a line, or the answer that says why it is refused.

        A request without a seed gets one from its id, so that the same batch gives the same answers.
        """
        if isinstance(line, BadLine):
            return Refusal(line.answer())
        if line.url == EMBEDDINGS:
            return self._embedding_job(line)
        try:
            is_chat = line.url == "/v1/chat/completions"
            request = parse_chat(line.body) if is_chat else parse_completion(line.body)
            options = request.options
            if options.stream:
                raise unsupported("stream", "a batch does not stream answers")
            if request.options.returns_token_ids:
                raise unsupported("return_token_ids", "a batch does not report them")
            if options.model not in self._names:
                raise RefusedRequestError(model_not_found(options.model, self._names))
            if options.n > self._max_choices:
                raise unsupported("n", f"this engine computes at most {self._max_choices} choices at once")
            encoded, plan = await self._encode(request)
            grammar = await self._compile(request, plan)
            limit = request.max_thinking_tokens if isinstance(request, ChatRequest) else None
            thought = bind_thought(plan, limit, grammar is not None, self._text)
            digest = hashlib.blake2b(line.custom_id.encode(), digest_size=16).digest()
            seed = int.from_bytes(digest[:8], "big") >> 1
            field_name = "messages" if is_chat else "prompt"
            preparation = Preparation(options, field_name, self._text, self._limits, self._defaults, seed, "")
            prompts = make_prompts(preparation, encoded, grammar, thought)
        except RefusedRequestError as refusal:
            return Refusal.of(line.custom_id, refusal.problem)
        head = ResponseHead(
            endpoint=ApiEndpoint.CHAT if is_chat else ApiEndpoint.COMPLETIONS,
            id=("chatcmpl-" if is_chat else "cmpl-") + digest[:12].hex(),
            created=self._created,
            model=options.model,
            system_fingerprint=f"fp_{self._model_hash[:12]}",
        )
        return Job(line.custom_id, request, prompts, head, self._text, plan)

    def _embedding_job(self, line: BatchLine) -> EncodingJob | Refusal:
        """The job of a line with inputs to embed."""
        try:
            request = parse_embedding(line.body)
            if request.options.model not in self._names:
                raise RefusedRequestError(model_not_found(request.options.model, self._names))
            if self._encoding is None:
                raise RefusedRequestError(
                    task_not_served(request.options.model, "embed", "this engine only keeps time")
                )
            plan = plan_encoding(request, self._encoding, self._text.bundle)
            packed = [
                b"".join(
                    encode_prompt(part) if isinstance(part, PromptText) else part
                    for part in encoded_texts(texts, self._text, self._limits, field)
                )
                for texts, field in zip(plan.inputs, plan.fields, strict=True)
            ]
            if plan.longest is not None and is_over(plan, packed):
                frame = encode_prompt(PromptText(self._text, "", False, self._limits.max_context_tokens, "input"))
                packed = [cut_text(ids, frame, plan.longest) for ids in packed]
            prompts = make_encoded_prompts(request, plan, packed, plan.encoding, self._limits)
        except RefusedRequestError as refusal:
            return Refusal.of(line.custom_id, refusal.problem)
        digest = hashlib.blake2b(line.custom_id.encode(), digest_size=12).hexdigest()
        fingerprint = f"fp_{self._model_hash[:12]}"
        head = ResponseHead(
            ApiEndpoint.COMPLETIONS, f"embed-{digest}", self._created, request.options.model, fingerprint
        )
        answer = AnswerHead(head, self._text, len(prompts), False, False, 0, False)
        return EncodingJob(line.custom_id, request, prompts, answer)

    async def _encode(self, request: ChatRequest | CompletionRequest) -> tuple[list[bytes], ParsePlan | None]:
        plan: ParsePlan | None = None
        if isinstance(request, CompletionRequest):
            prompts = completion_prompts(request, self._text, self._limits)
        else:
            conversation = build_conversation(request.messages, request.tool_use, request.prompting)
            room = chat_room(self._text, self._limits)
            rendered = await self._templates.render(self._text.bundle, conversation, budget=room)
            plan = plan_parsing(request, rendered, self._text.answer_format)
            prompts = [chat_prompt(rendered, self._text, self._limits)]
        packed = [encode_prompt(prompt) if isinstance(prompt, PromptText) else prompt for prompt in prompts]
        return packed, plan

    async def _compile(self, request: ChatRequest | CompletionRequest, plan: ParsePlan | None) -> Grammar | None:
        """The grammar of the answer; None: it may be any text. Raises RefusedError for one that cannot be followed."""
        output_format = request.options.output_format
        if plan is not None and plan.output_format is not None:
            output_format = plan.output_format
        return None if output_format is None else await self._compiler.compile(output_format, "")


def failure(custom_id: str) -> Refusal:
    """The answer to a request that failed in the engine."""
    return Refusal.of(custom_id, internal_error())
