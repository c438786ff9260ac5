"""A model whose answer the request itself contains: a Llama of two layers that repeats what stood `WINDOW` tokens back.

The chat template puts the script of the answer at the end of the prompt, padded to `WINDOW` tokens. So each token of
the script is exactly `WINDOW` tokens before the place where it is drawn, and one attention head finds it by its RoPE
phase. The weights are made by rules; nothing is trained, and the answer is known to the last token.

A grammar may mask a token of the script. Then the model draws the next one that is allowed, up to `SKIPS` later, and
goes on from there: the first layer gives each token the three before it, and the head prefers a place in the script
that continues the last three tokens drawn. Where a script repeats itself within a few tokens of a masked one, the model
may take the wrong repetition.

A script is text between `BEGIN` and `END` in a message. It may contain several answers with `NEXT` between them: the
template takes the first, and after each turn of the assistant the next one. Characters for private use stand for
tokens that text cannot ask for: `tokens_for` writes them for marks and for texts of several characters, `byte_token`
for one byte of a character.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

WINDOW = 1_024
"""Tokens from a place of the script to the place where it is drawn; the longest script is a little shorter."""
MAX_TOKENS = 4_096
"""The model's context: prompts are short, since the template shows only the beginning of each message."""
WORKER_FLAGS = ("--dtype", "float32", "--kv-cache-bytes", str(96 << 20))
"""What workers need for ten requests at a time."""
SKIPS = 3
"""The most tokens of the script in a row that a grammar may mask."""
EOS = "<|eos|>"
ROLES = ("<|begin|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|pad|>")
MARKS: Final = (
    "<think>", "</think>", "[THINK]", "[/THINK]", "<tool_call>", "</tool_call>", "<|python_tag|>", "<|python_start|>",
    "<|python_end|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>",
    "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>",
)  # fmt: skip
"""Marks of all formats, special tokens of the model."""
LONG_TOKENS: Final = (
    '{"', '": "', '": ', '", "', '"}', "}}", "\n\n", "</", ">\n", '": {"', "}\n", '"]', ", ", "<function=",
)  # fmt: skip
"""Ordinary tokens of several characters, which the tokenizer never makes of letters."""
BEGIN, NEXT, END, _PAD = "\uf8f0", "\uf8f1", "\uf8f2", "<|pad|>"
_FIRST_TOKEN, _FIRST_BYTE = 0xE000, 0xE100
_STAND_INS = {text: chr(_FIRST_TOKEN + number) for number, text in enumerate((*MARKS, *LONG_TOKENS))}
_DRAWN_BYTES = (9, 10, 13, *range(0x20, 0x7F), *range(0x80, 0xC0), *range(0xC2, 0xF5))

_HIDDEN, _HEAD, _HEADS = 576, 256, 1 + SKIPS
_CODE, _CONTEXT_CODE, _CONTEXT = 128, 64, 3
_CODES = 0
_OWN = _CODES + _CODE
_CONST = _OWN + (1 + _CONTEXT) * _CONTEXT_CODE
_OUT = _CONST + 1
_ROPE_THETA = 1e12
_PLACES = 26
"""Pairs of a head whose rotation tells positions apart. The other pairs rotate so little that they compare tokens."""
_FAST, _PLACE_WEIGHTS = 6, (0.5, 1.2)
"""The first pairs tell neighbours apart. Slower ones count more, so that a place far away is worse than a near one."""
_LEAD = 2
"""Skipping leads forward, so places after the expected one are preferred to those before it."""
_SHARPNESS = 40.0
_CONTEXT_WEIGHTS = (24.0, 8.0, 4.0)
"""Weights of the last token, the one before it, and the one before that: a later one outweighs those before it."""
_SKIP_WEIGHTS = (0.45, 0.22, 0.11)
_LOGIT_SCALE = 30.0


def script(*answers: str) -> str:
    """Return the text with which a message asks for these answers, one for each turn of the assistant."""
    return BEGIN + NEXT.join(answers) + END


def tokens_for(text: str, tokens: Sequence[str] = MARKS) -> str:
    """Return the text with each of these tokens replaced by the character that stands for it; longer ones first."""
    for token in sorted(tokens, key=len, reverse=True):
        text = text.replace(token, _STAND_INS[token])
    return text


def byte_token(byte: int) -> str:
    """Return the character that stands for the token of one byte: a part of a character of several bytes."""
    assert byte in _DRAWN_BYTES
    return chr(_FIRST_BYTE + byte)


def write_scripted_model(
    folder: Path, *, with_marks: bool = True, template_marks: str = "", opens_thoughts: bool = False
) -> Path:
    """Write the model. `with_marks`: marks of formats are special tokens; otherwise they are spelled in letters.
    `template_marks`: text in the chat template that reveals a format. `opens_thoughts`: the template opens a thought.
    """
    folder.mkdir(parents=True)
    tokenizer = _tokenizer(with_marks)
    tail = "<|assistant|>" + ("<think>" if opens_thoughts else "")
    texts = {
        "tokenizer.json": tokenizer.to_str(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|begin|>",
            "eos_token": EOS,
            "clean_up_tokenization_spaces": False,
        },
        "chat_template.jinja": _template(tail, len(tokenizer.encode(tail).ids), template_marks),
        "config.json": _config(tokenizer),
        "generation_config.json": {"do_sample": False, "eos_token_id": _end_ids(tokenizer)},
    }
    for name, content in texts.items():
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    save_file(_weights(tokenizer), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


# Tokenizer and template -----------------------------------------------------------------------------------------------


def _tokenizer(with_marks: bool) -> Tokenizer:
    letters = _byte_letters()
    names = [*letters.values(), *("".join(letters[byte] for byte in text.encode()) for text in LONG_TOKENS)]
    tokenizer = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = (EOS, *ROLES, *(MARKS if with_marks else ()))
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    stand_ins = [*_STAND_INS.values(), *map(byte_token, _DRAWN_BYTES)]
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in stand_ins])
    return tokenizer


def _byte_letters() -> dict[int, str]:
    """Return the letter that byte-level tokenizers write for each byte."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {byte: chr(256 + place) for place, byte in enumerate(hidden)}


def _template(tail: str, tail_tokens: int, marks: str) -> str:
    """Return the chat template: the beginning of each message, then the script of this turn's answer."""
    return (
        f"{{# {marks} #}}"
        f"{{%- set found = namespace(script='No script.', turn=0, role='', length={tail_tokens}) -%}}"
        "{{- bos_token -}}"
        "{%- for tool in tools or [] -%}{{- '<|system|>' + (tool | tojson)[:64] -}}{%- endfor -%}"
        "{%- for message in messages -%}"
        "{%- set text = (message.content or '') | string -%}"
        f"{{{{- '<|' + message.role + '|>' + text.split('{BEGIN}')[0][:64] -}}}}"
        "{%- if message.reasoning_content -%}{{- message.reasoning_content[:64] -}}{%- endif -%}"
        "{%- for call in message.tool_calls or [] -%}{{- (call.function | tojson)[:64] -}}{%- endfor -%}"
        "{%- if message.role == 'assistant' and found.role != 'assistant' -%}"
        "{%- set found.turn = found.turn + 1 -%}"
        f"{{%- elif '{BEGIN}' in text and '{END}' in text -%}}"
        f"{{%- set found.script = text.split('{BEGIN}')[-1].split('{END}')[0] -%}}{{%- set found.turn = 0 -%}}"
        "{%- endif -%}"
        "{%- set found.role = message.role -%}"
        "{%- endfor -%}"
        "{%- if add_generation_prompt -%}"
        f"{{%- set answers = found.script.split('{NEXT}') -%}}"
        "{%- if found.turn >= answers | length -%}"
        "{{- raise_exception('the script has no answer for turn ' + (found.turn | string)) -}}"
        "{%- endif -%}"
        "{%- set answer = answers[found.turn] -%}"
        "{%- for character in answer -%}"
        "{%- if '\ufdd0' <= character <= '\ufdef' -%}"  # a separator of the gateway: no token crosses it
        f"{{%- elif character < '\x7f' or '\ue000' <= character < '{BEGIN}' -%}}"
        "{%- set found.length = found.length + 1 -%}"
        "{%- else -%}{%- set found.length = found.length + (character | urlencode | length) // 3 -%}{%- endif -%}"
        "{%- endfor -%}"
        f"{{%- if found.length > {WINDOW} -%}}{{{{- raise_exception('the script is longer than the window') -}}}}"
        "{%- endif -%}"
        f"{{{{- '{_PAD}' * 3 + '{tail}' + answer + '{_PAD}' * ({WINDOW} - found.length) + '{tail}' -}}}}"
        "{%- endif -%}"
    )


def _end_ids(tokenizer: Tokenizer) -> list[int]:
    ids = (tokenizer.token_to_id(text) for text in (EOS, "<|call|>", "<|return|>"))
    return [token for token in ids if token is not None]


def _config(tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": _HIDDEN,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": 1,
        "head_dim": _HEAD,
        "hidden_act": "silu",
        "max_position_embeddings": MAX_TOKENS,
        "rms_norm_eps": 1e-9,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "rope_theta": _ROPE_THETA,
        "torch_dtype": "float32",
        "bos_token_id": tokenizer.token_to_id("<|begin|>"),
        "eos_token_id": _end_ids(tokenizer),
    }


# Weights --------------------------------------------------------------------------------------------------------------


def _weights(tokenizer: Tokenizer) -> dict[str, torch.Tensor]:
    """Return all tensors. The stream of a token: its code, its context code, those of the three tokens before it, a
    constant, and the codes of the tokens to draw.
    """
    embedding, head = _embedding(tokenizer)
    tensors = {
        "model.embed_tokens.weight": embedding,
        "lm_head.weight": head,
        "model.norm.weight": torch.ones(_HIDDEN),
    }
    for layer, norm_square in ((0, 3.0), (1, 3.0 + _CONTEXT)):
        q, k, v, o = _first_layer() if layer == 0 else _second_layer()
        tensors |= {
            f"model.layers.{layer}.self_attn.{name}_proj.weight": matrix
            for name, matrix in (("q", q), ("k", k), ("v", v), ("o", o))
        }
        silent = torch.zeros(16, _HIDDEN)
        tensors |= {f"model.layers.{layer}.mlp.{name}_proj.weight": silent.clone() for name in ("gate", "up")}
        tensors[f"model.layers.{layer}.mlp.down_proj.weight"] = silent.T.contiguous()
        # Norms divide by the stream's root mean square, which is the same for all tokens: the weight undoes that.
        tensors[f"model.layers.{layer}.input_layernorm.weight"] = torch.full(
            (_HIDDEN,), math.sqrt(norm_square / _HIDDEN)
        )
        tensors[f"model.layers.{layer}.post_attention_layernorm.weight"] = torch.ones(_HIDDEN)
    return tensors


def _embedding(tokenizer: Tokenizer) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the embedding and the head. A stand-in has the codes of its token, and padding those of the end."""
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    letters = _byte_letters()
    drawn = [
        *(vocabulary[letters[byte]] for byte in _DRAWN_BYTES),
        *(vocabulary["".join(letters[byte] for byte in text.encode())] for text in LONG_TOKENS),
        vocabulary[EOS],
        *(vocabulary[mark] for mark in MARKS if mark in vocabulary),
    ]
    dice = random.Random(0)
    codes, contexts = _orthogonal_codes(), _distant_codes()
    assert len(drawn) <= min(len(codes), len(contexts))
    embedding = torch.zeros(len(vocabulary), _HIDDEN)
    head = torch.zeros(len(vocabulary), _HIDDEN)
    for token in range(len(vocabulary)):
        embedding[token, _CODES:_OWN] = _random_code(dice, _CODE)
        embedding[token, _OWN : _OWN + _CONTEXT_CODE] = _random_code(dice, _CONTEXT_CODE)
        embedding[token, _CONST] = 1.0
    head[:, _CONST] = -_LOGIT_SCALE  # no other token is ever drawn
    head[drawn, _CONST] = 0.0
    for token, code, context in zip(drawn, codes, contexts, strict=False):
        embedding[token, _CODES:_OWN] = code
        embedding[token, _OWN : _OWN + _CONTEXT_CODE] = context
        head[token, _OUT : _OUT + _CODE] = code * _LOGIT_SCALE
    for byte in _DRAWN_BYTES:
        embedding[vocabulary[byte_token(byte)]] = embedding[vocabulary[letters[byte]]]
    for text, stand_in in _STAND_INS.items():
        original = text if text in MARKS else "".join(letters[byte] for byte in text.encode())
        if original in vocabulary:
            embedding[vocabulary[stand_in]] = embedding[vocabulary[original]]
    embedding[vocabulary[_PAD], _CODES:_OWN] = embedding[vocabulary[EOS], _CODES:_OWN]
    return embedding, head


def _random_code(dice: random.Random, size: int) -> torch.Tensor:
    return torch.tensor([dice.choice((-1.0, 1.0)) for _ in range(size)]) / math.sqrt(size)


def _hadamard(size: int) -> torch.Tensor:
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / math.sqrt(size)


def _orthogonal_codes() -> torch.Tensor:
    """Return 256 codes: two of them are orthogonal or opposite."""
    rows = _hadamard(_CODE)
    return torch.cat([rows, -rows])


def _distant_codes() -> torch.Tensor:
    """Return 256 shorter codes whose products are at most 1/8: rows of a Hadamard matrix, bent by a quadratic form."""
    rows = _hadamard(_CONTEXT_CODE)
    bits = [[number >> place & 1 for place in range(6)] for number in range(_CONTEXT_CODE)]
    bent = torch.tensor([(-1.0) ** (b[0] * b[1] + b[2] * b[3] + b[4] * b[5]) for b in bits])
    return torch.cat([rows, rows * bent, -rows, -rows * bent])


def _place_query() -> torch.Tensor:
    """Return a query of the places of tokens, to be turned to a distance."""
    query = torch.zeros(_HEAD, _HIDDEN)
    query[:_FAST, _CONST], query[_FAST:_PLACES, _CONST] = _PLACE_WEIGHTS
    return query


def _turned(query: torch.Tensor, distance: int, lead: int = 0) -> torch.Tensor:
    """Return the query that finds `distance` tokens back what it would find at its own place. `lead`: later places are
    preferred to earlier ones, as if slow pairs looked this many tokens nearer.
    """
    distances = torch.full((_HEAD // 2,), float(distance), dtype=torch.float64)
    distances[_FAST:_PLACES] -= lead
    angles = distances * _ROPE_THETA ** (-2 * torch.arange(_HEAD // 2, dtype=torch.float64) / _HEAD)
    cosines, sines = angles.cos().float()[:, None], angles.sin().float()[:, None]
    first, second = query.chunk(2)
    turned = torch.cat([cosines * first + sines * second, cosines * second - sines * first])
    return turned * _SHARPNESS * math.sqrt(_HEAD)  # attention divides by the root of the head's size


def _empty_layer() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return zeros for q, k, v and o; the key contains a constant in each pair that tells places apart."""
    k = torch.zeros(_HEAD, _HIDDEN)
    k[:_PLACES, _CONST] = 1.0
    return torch.zeros(_HEADS * _HEAD, _HIDDEN), k, torch.zeros(_HEAD, _HIDDEN), torch.zeros(_HIDDEN, _HEADS * _HEAD)


def _first_layer() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the layer that gives each token the context codes of the three tokens before it."""
    q, k, v, o = _empty_layer()
    size = _CONTEXT_CODE
    v[:size, _OWN : _OWN + size] = torch.eye(size)
    for back in range(1, _CONTEXT + 1):
        first = (back - 1) * _HEAD
        q[first : first + _HEAD] = _turned(_place_query(), back)
        o[_context(back), first : first + size] = torch.eye(size)
    return q, k, v, o


def _second_layer() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the layer that finds the script's next token, and with other heads the tokens after it."""
    q, k, v, o = _empty_layer()
    size = _CONTEXT_CODE
    slow = [*range(_PLACES, _HEAD // 2), *range(_HEAD // 2 + _PLACES, _HEAD)]
    rows = [slow[back * size : (back + 1) * size] for back in range(_CONTEXT)]
    for back in range(_CONTEXT):
        k[rows[back], _context(back + 1)] = torch.eye(size)
    v[:_CODE, _CODES:_OWN] = torch.eye(_CODE)
    for ahead, weight in enumerate((1.0, *_SKIP_WEIGHTS)):
        query = _place_query()
        for back, strength in enumerate(_CONTEXT_WEIGHTS[: _CONTEXT - ahead]):
            query[rows[back + ahead], _context(back)] = torch.eye(size) * strength
        first = ahead * _HEAD
        q[first : first + _HEAD] = _turned(query, WINDOW - 1 - ahead, _LEAD)
        o[_OUT : _OUT + _CODE, first : first + _CODE] = torch.eye(_CODE) * weight
    return q, k, v, o


def _context(back: int) -> slice:
    """Return where a token's stream has the context code of the token `back` places before it."""
    return slice(_OWN + back * _CONTEXT_CODE, _OWN + (back + 1) * _CONTEXT_CODE)
