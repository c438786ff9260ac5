"""The work for a request without an answer: its prompts, the result of each, and the scores made of them.

Pure. What a model makes of a prompt is in the limits that its workers announced.
"""

from __future__ import annotations

import enum
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul

from baton_gateway.errors import Problem, RefusedError, invalid, task_not_served
from baton_gateway.openai_api.encoding_types import EncodeRequest, EncodeTask
from baton_gateway.text.bundle import Bundle
from baton_gateway.text.special_token_escape import SpecialTokenEscape, remove_separators
from baton_wire.messages.encoding import Encoding, EncodingKind, EncodingLimits
from baton_wire.messages.values import PACKED_ID_BYTES

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
"""Qwen's own, where neither the request nor the model's files bring one."""
JUDGEMENTS = ("no", "yes")
_BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


class Scoring(enum.Enum):
    """How the score of a pair comes about."""

    COSINE = enum.auto()
    """The cosine of the embeddings of its two texts."""
    LABEL = enum.auto()
    """The one label of the two texts, one after the other."""
    JUDGEMENT = enum.auto()
    """The probability of `yes` against `no` after a question about the two texts."""


@dataclass(frozen=True, slots=True)
class InputText:
    """A text to tokenise."""

    text: str
    is_rendered: bool = False
    """True if its special tokens are written out."""
    cuts: tuple[int, ...] = ()
    """Places that no token crosses."""


EncodeInput = tuple[InputText, ...] | tuple[int, ...]
"""Texts whose ids follow each other, or ids."""


@dataclass(frozen=True, slots=True)
class EncodePlan:
    """The prompts of a request, in the order in which workers get them."""

    inputs: tuple[EncodeInput, ...]
    fields: tuple[str, ...]
    """The request's field of each input."""
    encoding: Encoding
    """Without the ids of JUDGEMENTS."""
    width: int
    """Values of each result."""
    scoring: Scoring | None
    """How pairs are scored; None: there are no pairs."""
    longest: int | None = None
    """The tokens after which a text is cut; None: it is not."""


def find_unserved(request: EncodeRequest, limits: EncodingLimits) -> Problem | None:
    """Why the model's workers cannot do this; None: they can."""
    model = request.options.alias or request.options.model
    match request.task:
        case EncodeTask.EMBED if not limits.embeds:
            return task_not_served(model, "embed", "it has no embeddings")
        case EncodeTask.CLASSIFY if not limits.labels:
            return task_not_served(model, "classify", "its checkpoint has no classification head")
        case EncodeTask.SCORE | EncodeTask.RERANK if limits.labels > 1:
            return task_not_served(model, "rank", f"it has {limits.labels} labels where one is needed; use /classify")
    return None


def plan_encoding(request: EncodeRequest, limits: EncodingLimits, bundle: Bundle) -> EncodePlan:
    """Plan the prompts of a request. Raises RefusedError that names the offending field."""
    if (problem := find_unserved(request, limits)) is not None:
        raise RefusedError(problem)
    match request.task:
        case EncodeTask.EMBED:
            return _plan_embedding(request, limits, bundle)
        case EncodeTask.CLASSIFY:
            inputs = tuple(_plain(text) for text in request.prompts)
            return EncodePlan(inputs, request.fields, Encoding(EncodingKind.LABELS), limits.labels, None)
    if limits.labels or limits.reranks:
        return _plan_pairs(request, limits, bundle)
    if request.instruction is not None:
        raise invalid("instruction", "'instruction' needs a reranking model; this one compares embeddings.")
    prompts = [_prefix("", bundle.default_prompt, bundle)] * len(request.prompts)
    if request.task is EncodeTask.RERANK and "query" in bundle.prompts:
        prompts = [bundle.prompts["query"], *[bundle.prompts.get("document", "")] * (len(request.prompts) - 1)]
    texts = tuple(_plain(text, prompt) for text, prompt in zip(request.prompts, prompts, strict=True))
    encoding = Encoding(EncodingKind.EMBEDDING, is_normalised=True)
    return EncodePlan(texts, request.fields, encoding, limits.width, Scoring.COSINE, _longest(request, bundle))


def _plan_embedding(request: EncodeRequest, limits: EncodingLimits, bundle: Bundle) -> EncodePlan:
    if request.dimensions is not None and request.dimensions > limits.width:
        message = f"'dimensions' is {request.dimensions}; this model's embeddings have {limits.width} values."
        raise invalid("dimensions", message, "out_of_range")
    if request.prompt_name is not None and request.prompt_name not in bundle.prompts:
        known = ", ".join(f"'{name}'" for name in bundle.prompts) or "none"
        raise invalid("prompt_name", f"'prompt_name' is '{request.prompt_name}'; the model's prompts are: {known}.")
    prefix = request.instruction
    if prefix is None:
        prefix = _prefix(request.prompt_name or "", bundle.default_prompt, bundle)
    encoding = Encoding(EncodingKind.EMBEDDING, request.dimensions, request.is_normalised)
    inputs = tuple(_plain(text, prefix) for text in request.prompts)
    width = request.dimensions or limits.width
    return EncodePlan(inputs, request.fields, encoding, width, None, _longest(request, bundle))


def _longest(request: EncodeRequest, bundle: Bundle) -> int | None:
    """The tokens of a text that sentence-transformers would read, unless the client says how texts are cut."""
    return bundle.longest_text if request.options.truncate_prompt_tokens is None else None


def is_over(plan: EncodePlan, packed: Sequence[bytes]) -> bool:
    """True if a packed prompt is longer than the plan's texts are read."""
    return plan.longest is not None and any(len(ids) > plan.longest * PACKED_ID_BYTES for ids in packed)


def cut_text(packed: bytes, frame: bytes, longest: int) -> bytes:
    """The first `longest` tokens of a packed prompt. Tokens that the tokenizer puts before and after each text count
    and stay. `frame`: the packed prompt of an empty text, which has these tokens alone."""
    if len(packed) <= longest * PACKED_ID_BYTES:
        return packed
    for place in range(len(frame), -1, -PACKED_ID_BYTES):
        before, after = frame[:place], frame[place:]
        if packed.startswith(before) and packed.endswith(after):
            return packed[: max(longest * PACKED_ID_BYTES - len(after), len(before))] + after
    return packed[: longest * PACKED_ID_BYTES]


def _prefix(name: str, default: str | None, bundle: Bundle) -> str:
    return bundle.prompts.get(name or default or "", "")


def _plan_pairs(request: EncodeRequest, limits: EncodingLimits, bundle: Bundle) -> EncodePlan:
    """One prompt for each pair. Raises RefusedError."""
    fields = tuple(request.fields[right] for _, right in request.pairs)
    pairs = [(request.prompts[left], request.prompts[right]) for left, right in request.pairs]
    if not limits.reranks:
        if request.instruction is not None:
            raise invalid("instruction", "'instruction' is not supported: this model reads the two texts alone.")
        inputs = tuple((*_plain(left), *_plain(right)) for left, right in pairs)
        return EncodePlan(inputs, fields, Encoding(EncodingKind.LABELS), 1, Scoring.LABEL)
    instruction = request.instruction or _prefix("", bundle.default_prompt, bundle) or INSTRUCTION
    escape = SpecialTokenEscape(bundle.control_tokens)
    questions = tuple(
        (_question(instruction, str(left), str(right), escape, field),)
        for (left, right), field in zip(pairs, fields, strict=True)
    )
    return EncodePlan(questions, fields, Encoding(EncodingKind.TOKENS, token_ids=(0, 1)), 2, Scoring.JUDGEMENT)


def _question(instruction: str, query: str, document: str, escape: SpecialTokenEscape, field: str) -> InputText:
    """The question of Qwen's rerankers. Special tokens that a client spells stay letters."""
    texts: Sequence[str] = (instruction, query, document)
    separator = escape.choose_separator(*texts)
    if separator == "":
        raise invalid(field, f"'{field}' spells special tokens and uses every character that could separate them.")
    if separator is not None:
        texts = [escape.insert_separators(text, separator) for text in texts]
    body = "<Instruct>: {}\n<Query>: {}\n<Document>: {}".format(*texts)
    whole = _BEFORE + body + _AFTER
    text, cuts = (whole, ()) if separator is None else remove_separators(whole, separator)
    return InputText(text, is_rendered=True, cuts=cuts)


def _plain(text: str | tuple[int, ...], prefix: str = "") -> EncodeInput:
    return (InputText(prefix + text),) if isinstance(text, str) else text


def pair_scores(
    request: EncodeRequest, scoring: Scoring, results: Sequence[array[float]], is_probability: bool
) -> list[float]:
    """The score of each pair, from the results of its prompts."""
    match scoring:
        case Scoring.COSINE:
            return [math.fsum(map(mul, results[left], results[right])) for left, right in request.pairs]
        case Scoring.JUDGEMENT:
            return [sigmoid(yes - no) for no, yes in results]
        case Scoring.LABEL:
            return [sigmoid(logit) if is_probability else logit for (logit,) in results]


def label_probabilities(logits: Sequence[float], is_probability: bool) -> list[float]:
    """Scores of a classifier's labels: a softmax, or a sigmoid of the only label."""
    if not is_probability:
        return list(logits)
    if len(logits) == 1:
        return [sigmoid(logits[0])]
    greatest = max(logits)
    weights = [math.exp(logit - greatest) for logit in logits]
    total = sum(weights)
    return [weight / total for weight in weights]


def sigmoid(logit: float) -> float:
    """1 / (1 + exp(-logit)), without overflow."""
    return 1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit))
