"""Trains the tiny model of this folder from `corpus/`: one thread, fixed seeds, the same bytes on the same machine.

    python examples/tiny-llama/train.py            # about ten minutes; writes into this folder
    python examples/tiny-llama/train.py --steps 50 --out /tmp/tiny   # a look at the loop

Tokenizer, weights and config are written in the Hugging Face layout. Needs the `dev` extra (transformers).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import corpus
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM

HERE = Path(__file__).parent
BOS, SYSTEM, USER, ASSISTANT, END = "<|begin|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"
SPECIAL = (BOS, SYSTEM, USER, ASSISTANT, END)
CHAT_TEMPLATE = (
    "{{- bos_token -}}"
    "{%- if tools -%}"
    "{{- '<|system|>You may call these tools:' -}}"
    "{%- for tool in tools -%}{{- '\\n' + (tool | tojson) -}}{%- endfor -%}"
    '{{- \'\\nA call is <tool_call>{"name": NAME, "arguments": OBJECT}</tool_call>.<|end|>\' -}}'
    "{%- endif -%}"
    "{%- for message in messages -%}"
    "{%- if message.role not in ['system', 'user', 'assistant', 'tool'] -%}"
    "{{- raise_exception('role ' + message.role + ' is not known; use system, user, assistant or tool') -}}"
    "{%- endif -%}"
    "{%- if message.role == 'tool' -%}"
    "{{- '<|user|><tool_response>\\n' + message.content + '\\n</tool_response><|end|>' -}}"
    "{%- else -%}"
    "{{- '<|' + message.role + '|>' + message.content -}}"
    "{%- for call in message.tool_calls or [] -%}"
    "{{- '<tool_call>\\n{\"name\": ' + (call.function.name | tojson) + ', \"arguments\": ' -}}"
    "{{- (call.function.arguments | tojson) + '}\\n</tool_call>' -}}"
    "{%- endfor -%}"
    "{{- '<|end|>' -}}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)
"""The model was trained on no tools. The template takes them, so that clients that send tools can be tried."""
VOCAB = 1024
IGNORED = -100
"""Target of a position that the loss leaves out (torch's convention)."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that the result depends on besides the text."""

    seed: int = 20
    steps: int = 2400
    batch_tokens: int = 2304
    window: int = 384
    long_window: int = 1536
    """Every `long_every`-th step uses it, so that distances up to 1,536 tokens are known to the model."""
    long_every: int = 8
    peak_rate: float = 3e-3
    warm_steps: int = 50
    weight_decay: float = 0.02


# Tokenizer ------------------------------------------------------------------------------------------------------------


def train_tokenizer(entries: list[corpus.Entry]) -> Tokenizer:
    """Byte-level BPE: every string round-trips; ids 0..4 are the special tokens; encoding with specials adds BOS."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = [text for entry in entries for text in (*entry.questions, entry.answer)]
    tokenizer.train_from_iterator([*texts, *corpus.SYSTEM_PROMPTS], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return tokenizer


# Training text --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sample:
    """A conversation as token ids; `learnt[i]` says whether the loss counts ids[i] as a target."""

    ids: list[int]
    learnt: list[bool]


class Conversations:
    """Endless random conversations over the entries, each answer about equally often."""

    def __init__(self, tokenizer: Tokenizer, entries: list[corpus.Entry], sums: list[corpus.Entry], seed: int) -> None:
        self._tokenizer = tokenizer
        self._entries = entries
        self._sums = sums
        self._random = random.Random(seed)
        self._deck: list[corpus.Entry] = []
        self._sentences = [s + "." for e in entries for s in e.answer.split(". ") if len(s) > 20]

    def draw(self) -> Sample:
        if self._random.random() < 0.08:
            return self._plain()
        ids, learnt = [self._special(BOS)], [False]
        for role, text in self._turns():
            body = [*self._encode(text), self._special(END)]
            ids += [self._special(role), *body]
            learnt += [False, *([role == ASSISTANT] * len(body))]
        return Sample(ids, learnt)

    def _plain(self) -> Sample:
        """An answer as a document of its own, for completions without a chat."""
        ids = [self._special(BOS), *self._encode(self._entry().answer), self._special(END)]
        return Sample(ids, [False, False] + [True] * (len(ids) - 2))

    def _turns(self) -> Iterator[tuple[str, str]]:
        draw = self._random.random()
        if draw < 0.25:
            yield SYSTEM, self._random.choice(corpus.SYSTEM_PROMPTS)
        elif draw < 0.4:
            yield SYSTEM, " ".join(self._random.choices(self._sentences, k=self._random.randint(1, 12)))
        for _ in range(self._random.choice((1, 1, 1, 2, 3))):
            entry = self._entry()
            yield USER, self._ask(entry)
            yield ASSISTANT, entry.answer

    def _entry(self) -> corpus.Entry:
        if not self._deck:
            self._deck = [*self._entries, *self._random.sample(self._sums, 25)]
            self._random.shuffle(self._deck)
        return self._deck.pop()

    def _ask(self, entry: corpus.Entry) -> str:
        question = self._random.choice(entry.questions)
        draw = self._random.random()
        if draw < 0.1:
            question = question.lower()
        elif draw < 0.2:
            question = question.rstrip("?!.")
        elif draw < 0.25:
            question = "Please: " + question
        return question

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _special(self, token: str) -> int:
        return int(self._tokenizer.token_to_id(token))


def batch(conversations: Conversations, rows: int, window: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets, both [rows, window]: conversations one after another, cut at the window's end."""
    inputs, targets = [], []
    for _ in range(rows):
        ids: list[int] = []
        learnt: list[bool] = []
        while len(ids) <= window:
            sample = conversations.draw()
            ids += sample.ids
            learnt += sample.learnt
        inputs.append(ids[:window])
        targets.append([i if keep else IGNORED for i, keep in zip(ids[1:], learnt[1:], strict=True)][:window])
    return torch.tensor(inputs), torch.tensor(targets)


# Model and loop -------------------------------------------------------------------------------------------------------


def model_config() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=SPECIAL.index(BOS),
        eos_token_id=SPECIAL.index(END),
        pad_token_id=None,
    )


def learning_rate(step: int, recipe: Recipe) -> float:
    """Linear warm-up, then a cosine down to 1 % of the peak."""
    if step < recipe.warm_steps:
        return recipe.peak_rate * (step + 1) / recipe.warm_steps
    done = (step - recipe.warm_steps) / max(1, recipe.steps - recipe.warm_steps)
    return recipe.peak_rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))


def train(tokenizer: Tokenizer, recipe: Recipe) -> LlamaForCausalLM:
    torch.manual_seed(recipe.seed)
    model = LlamaForCausalLM(model_config())
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=recipe.peak_rate, betas=(0.9, 0.98))
    conversations = Conversations(tokenizer, corpus.written(), corpus.sums(), recipe.seed)
    began = time.perf_counter()
    for step in range(recipe.steps):
        window = recipe.long_window if step % recipe.long_every == recipe.long_every - 1 else recipe.window
        inputs, targets = batch(conversations, recipe.batch_tokens // window, window)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, recipe)
        logits = model(input_ids=inputs, use_cache=False).logits  # [rows, window, VOCAB]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0 or step == recipe.steps - 1:
            print(f"step {step:5d}  loss {loss.item():.4f}  {time.perf_counter() - began:6.1f} s", flush=True)
    return model


# Files ----------------------------------------------------------------------------------------------------------------


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_texts(out: Path, tokenizer: Tokenizer) -> None:
    """tokenizer.json, tokenizer_config.json, config.json, generation_config.json."""
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    write_json(
        out / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BOS,
            "eos_token": END,
            "clean_up_tokenization_spaces": False,
            "model_max_length": 2048,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    ids = {"bos_token_id": SPECIAL.index(BOS), "eos_token_id": SPECIAL.index(END)}
    config = model_config()
    fields = (
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
        *("num_key_value_heads", "head_dim", "hidden_act", "max_position_embeddings", "rms_norm_eps"),
        *("tie_word_embeddings", "attention_bias", "mlp_bias"),
    )
    write_json(
        out / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            **{field: getattr(config, field) for field in fields},
            "rope_theta": 10000.0,
            "torch_dtype": "float16",
            **ids,
        },
    )
    write_json(out / "generation_config.json", {"do_sample": False, **ids})


def write_weights(out: Path, model: LlamaForCausalLM) -> None:
    """Weights rounded to float16 (half the size, same margins), without the tied head; SHA256SUMS over all files."""
    tensors = {name: t.half().contiguous() for name, t in model.state_dict().items() if name != "lm_head.weight"}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    names = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    lines = [f"{hashlib.sha256((out / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    (out / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")
    print("".join(lines), end="")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--steps", type=int, default=Recipe().steps, help="optimiser steps (default: the committed recipe)"
    )
    parser.add_argument("--out", type=Path, default=HERE, help="folder to write into")
    parser.add_argument("--tokenizer-only", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer([*corpus.written(), *corpus.sums()])
    write_texts(options.out, tokenizer)
    if not options.tokenizer_only:
        write_weights(options.out, train(tokenizer, Recipe(steps=options.steps)))


if __name__ == "__main__":
    main()
