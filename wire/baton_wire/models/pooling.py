"""How a model's hidden states become one vector: the files of a sentence-transformers folder, parsed.

`modules.json` lists the steps, `1_Pooling/config.json` says which hidden states count, `2_Normalize` divides by the
length, and `config_sentence_transformers.json` names the prompts that are put before a text. What Baton would compute
differently is refused by its field. A folder without these files pools the last token and normalises.

The folder of a cross-encoder has the same files: a classifier is a Transformer alone, and a reranker that answers `yes`
or `no` has a LogitScore after it, which names the ids of both tokens.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from baton_wire.models.config_fields import MAX_SIZE, ConfigFields, JsonObject
from baton_wire.models.errors import ModelConfigError

MODULES: Final = "modules.json"
PROMPTS: Final = "config_sentence_transformers.json"
TRANSFORMER_OPTIONS: Final = "sentence_bert_config.json"
TOKENIZER_CONFIG: Final = "tokenizer_config.json"
MAX_MODULES: Final = 16
MAX_PROMPTS: Final = 256
MAX_PROMPT_CHARS: Final = 8_192


class Pooling(enum.StrEnum):
    """Which hidden states of a text become its vector."""

    LAST = "last"
    MEAN = "mean"
    FIRST = "first"


_FLAGS: Final = {
    "pooling_mode_cls_token": Pooling.FIRST,
    "pooling_mode_mean_tokens": Pooling.MEAN,
    "pooling_mode_lasttoken": Pooling.LAST,
}
_MODES: Final = {"cls": Pooling.FIRST, "mean": Pooling.MEAN, "lasttoken": Pooling.LAST}
_OTHER_FLAGS: Final = (
    "pooling_mode_max_tokens",
    "pooling_mode_mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens",
)
_ALLOWED_MODULES: Final = "Transformer, Pooling, and then Normalize; or Transformer and LogitScore"
_CLASSIFIES: Final = "ForSequenceClassification"
_ALLOWED_MODES: Final = "exactly one of cls, mean and lasttoken"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The ids of the two tokens by whose logits a reranker scores a pair."""

    yes: int
    no: int


@dataclass(frozen=True, slots=True)
class PoolingSpec:
    """The steps from hidden states to a vector."""

    method: Pooling = Pooling.LAST
    is_normalised: bool = True
    """True if vectors are divided by their length."""
    is_stated: bool = False
    """True if the model's files say so: the model was made for embeddings."""
    judgement: Judgement | None = None
    """The answers of a reranker, by its files; None: they name none."""


PLAIN_POOLING: Final = PoolingSpec()


def read_pooling(
    modules: object, read: Callable[[str], JsonObject | None], config: JsonObject, hidden_size: int
) -> PoolingSpec:
    """The pooling that modules.json lists. `modules`: its parsed content; `read`: reads another JSON object of the
    folder, None where there is none. Raises ModelConfigError: field, value, what is allowed."""
    _check_mask(config)
    method, is_normalised, judgement, is_classifier = None, False, None, _is_classifier(config)
    for place, (kind, folder) in enumerate(_read_modules(modules)):
        match kind:
            case "Transformer" if place == 0:
                _check_transformer(read(TRANSFORMER_OPTIONS))
                read_longest_text(read(TRANSFORMER_OPTIONS), read(TOKENIZER_CONFIG))
            case "Pooling" if place == 1:
                path = f"{folder}/config.json"
                fields = ConfigFields(read(path) or {}, f"{path}: ")
                method = _read_method(fields, hidden_size)
                if method is Pooling.MEAN and not fields.flag("include_prompt", True) and _has_prompts(read):
                    raise fields.error("include_prompt", "true where a mean is taken and the model has prompts")
            case "LogitScore" if place == 1 and not is_classifier:
                judgement = _read_judgement(
                    ConfigFields(read(f"{folder}/config.json") or {}, f"{folder}/config.json: ")
                )
            case "Normalize" if method is not None:
                is_normalised = True
            case _:
                raise ModelConfigError(
                    f"{MODULES}: [{place}].type: {kind} is not supported there; allowed: {_ALLOWED_MODULES}"
                )
    if method is None and (judgement is not None or is_classifier):
        return PoolingSpec(judgement=judgement)
    if method is None:
        raise ModelConfigError(f"{MODULES}: has no Pooling; allowed: {_ALLOWED_MODULES}")
    return PoolingSpec(method, is_normalised, is_stated=True)


def read_prompts(raw: JsonObject | None) -> tuple[dict[str, str], str | None]:
    """The prompts by name, and the name of the default one. Raises ModelConfigError."""
    fields = ConfigFields(raw or {}, f"{PROMPTS}: ")
    prompts = fields.raw("prompts")
    if prompts is None:
        prompts = {}
    if not isinstance(prompts, dict) or len(prompts) > MAX_PROMPTS:
        raise fields.error("prompts", f"an object of at most {MAX_PROMPTS} texts")
    texts: dict[str, str] = {}
    for name, text in prompts.items():
        if not isinstance(text, str) or len(text) > MAX_PROMPT_CHARS or not 0 < len(name) <= 64:
            raise fields.error("prompts", f"an object of texts of at most {MAX_PROMPT_CHARS} characters")
        texts[name] = text
    default = fields.text("default_prompt_name") if fields.has("default_prompt_name") else None
    if default is not None and default not in texts:
        raise fields.error("default_prompt_name", f"one of {', '.join(texts) or 'no prompts'}")
    return texts, default


def read_longest_text(options: JsonObject | None, tokenizer_config: JsonObject | None) -> int | None:
    """The tokens after which sentence-transformers cuts a text; None: it cuts none. `options`: TRANSFORMER_OPTIONS, of
    which older releases wrote `max_seq_length`; newer ones leave it to the tokenizer. Raises ModelConfigError."""
    for file, name, content in (
        (TRANSFORMER_OPTIONS, "max_seq_length", options),
        (TOKENIZER_CONFIG, "model_max_length", tokenizer_config),
    ):
        fields = ConfigFields(content or {}, f"{file}: ")
        if fields.raw(name) is not None and not _is_unlimited(fields.raw(name)):
            return fields.integer(name)
    return None


def _is_unlimited(length: object) -> bool:
    """True for what transformers writes for a tokenizer without a longest text: a number that no text reaches."""
    return isinstance(length, int | float) and length > MAX_SIZE


def _check_mask(config: JsonObject) -> None:
    """Refuse models whose tokens attend to later ones."""
    fields = ConfigFields(config)
    fields.only("is_causal", True, "true: each token attends to those before it")
    fields.only("use_bidirectional_attention", False, "false: each token attends to those before it")


def _read_modules(modules: object) -> list[tuple[str, str]]:
    """The kind and the folder of each module, in order."""
    if not isinstance(modules, list) or not 1 <= len(modules) <= MAX_MODULES:
        raise ModelConfigError(f"{MODULES}: must be a list of 1 to {MAX_MODULES} modules")
    parsed = []
    for place, module in enumerate(modules):
        if not isinstance(module, dict):
            raise ModelConfigError(f"{MODULES}: [{place}]: must be an object")
        fields = ConfigFields(module, f"{MODULES}: [{place}].")
        folder = fields.text("path", "")
        if folder.startswith("/") or ".." in folder.split("/"):
            raise fields.error("path", "a folder inside the model's")
        parsed.append((fields.text("type").rpartition(".")[2], folder))
    return parsed


def _check_transformer(options: JsonObject | None) -> None:
    ConfigFields(options or {}, f"{TRANSFORMER_OPTIONS}: ").only("do_lower_case", False, "false")


def _is_classifier(config: JsonObject) -> bool:
    names = config.get("architectures")
    return isinstance(names, list) and len(names) == 1 and str(names[0]).endswith(_CLASSIFIES)


def _read_judgement(fields: ConfigFields) -> Judgement:
    """The answers that a LogitScore compares. With `yes` alone the score is a logit, which is no probability."""
    if fields.raw("false_token_id") is None:
        raise fields.error("false_token_id", "the id of the token for no: a score compares both tokens")
    return Judgement(fields.integer("true_token_id", minimum=0), fields.integer("false_token_id", minimum=0))


def _has_prompts(read: Callable[[str], JsonObject | None]) -> bool:
    prompts, _ = read_prompts(read(PROMPTS))
    return any(prompts.values())


def _read_method(fields: ConfigFields, hidden_size: int) -> Pooling:
    for width in ("word_embedding_dimension", "embedding_dimension"):
        if fields.has(width) and fields.integer(width) != hidden_size:
            raise fields.error(width, f"{hidden_size}, the hidden_size of config.json")
    chosen = [method for flag, method in _FLAGS.items() if fields.flag(flag, False)]
    for flag in _OTHER_FLAGS:
        if fields.flag(flag, False):
            raise fields.error(flag, f"false: {_ALLOWED_MODES}")
    if fields.has("pooling_mode"):
        mode = _MODES.get(fields.text("pooling_mode"))
        if mode is None or (chosen and chosen != [mode]):
            raise fields.error("pooling_mode", _ALLOWED_MODES)
        return mode
    if len(chosen) != 1:
        first = next((flag for flag in _FLAGS if fields.flag(flag, False)), "pooling_mode_lasttoken")
        raise fields.error(first, _ALLOWED_MODES)
    return chosen[0]
