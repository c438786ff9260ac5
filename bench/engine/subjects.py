"""The models that are measured: the trained tiny one of `examples/`, and a random Llama of 100 million parameters.

The random one is written once, with its tokenizer, outside the repository (`$XDG_CACHE_HOME/baton-bench`).
"""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

TINY = Path(__file__).resolve().parents[2] / "examples" / "tiny-llama"
VOCAB = 32_000
SEED = 7


@dataclass(frozen=True, slots=True)
class Subject:
    name: str
    folder: Path
    vocab_size: int


def tiny() -> Subject:
    return Subject("tiny-0.9M", TINY, json.loads((TINY / "config.json").read_text())["vocab_size"])


def random_100m() -> Subject:
    """12 layers of 768, 12 query and 4 key/value heads of 64, 32,000 ids, tied: 100.1 M parameters, fp32."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = cache / "baton-bench" / "llama-100m"
    if not (folder / "tokenizer_config.json").exists():
        _write(folder)
    return Subject("random-100M", folder, VOCAB)


def _write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    _tokenizer().save(str(folder / "tokenizer.json"))
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    fields = {"bos_token": "<|begin|>", "eos_token": "<|end|>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(fields))


def _tokenizer() -> Tokenizer:
    """Byte-level BPE over made-up words: as many ids as a real one, so that detokenising costs what it costs."""
    draw = random.Random(SEED)
    syllables = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
    words = ("".join(draw.choices(syllables, k=draw.randint(2, 5))) for _ in range(60_000))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=["<|begin|>", "<|end|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([" ".join(words)], trainer)
    return tokenizer
