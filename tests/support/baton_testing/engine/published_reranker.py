"""A tiny Qwen3-Reranker with the files of the published ones, with and without those of sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM

from baton_testing.engine.models import write_random_weights

_SPLITS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SENTENCES: Final = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided.",
    'Note that the answer can only be "yes" or "no".',
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query",
    "<Query>: What is the capital of China?\n<Document>: The capital of China is Beijing.",
    "system\nuser\nassistant\nyes no yes no",
)
_SPECIAL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_PLAIN: Final = ("<tool_call>", "</tool_call>", "<think>", "</think>")
"""Tokens that are added, but not special."""
WEB_SEARCH: Final = "Given a web search query, retrieve relevant passages that answer the query"


def write_reranker(directory: Path, *, has_modules: bool = True, prompt: str = WEB_SEARCH) -> None:
    """Write the folder. `has_modules`: with the files of sentence-transformers; `prompt`: the default one in them."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer()
    end, _, stop = (tokenizer.token_to_id(token) for token in _SPECIAL)
    torch.manual_seed(7)
    config = AutoConfig.for_model(
        "qwen3",
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_window_layers=3,
        max_position_embeddings=2_048,
        rope_theta=1e6,
        tie_word_embeddings=True,
        vocab_size=tokenizer.get_vocab_size(),
        bos_token_id=end,
        eos_token_id=stop,
    )
    write_random_weights(AutoModelForCausalLM.from_config(config, attn_implementation="eager"), directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    added = {
        str(tokenizer.token_to_id(token)): {"content": token, "special": token in _SPECIAL, **_EXACT}
        for token in (*_SPECIAL, *_PLAIN)
    }
    _write(
        directory / "tokenizer_config.json",
        {
            "add_bos_token": False,
            "add_prefix_space": False,
            "added_tokens_decoder": added,
            "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
            "bos_token": None,
            "clean_up_tokenization_spaces": False,
            "eos_token": "<|im_end|>",
            "errors": "replace",
            "model_max_length": 131_072,
            "pad_token": "<|endoftext|>",
            "split_special_tokens": False,
            "tokenizer_class": "Qwen2Tokenizer",
            "unk_token": None,
        },
    )
    _write(directory / "generation_config.json", {"bos_token_id": end, "do_sample": True, "eos_token_id": [stop, end]})
    if has_modules:
        _write_modules(directory, tokenizer, prompt)


_EXACT: Final = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}


def _write_modules(directory: Path, tokenizer: Tokenizer, prompt: str) -> None:
    kinds = (("", "base.modules.transformer.Transformer"),
             ("1_LogitScore", "cross_encoder.modules.logit_score.LogitScore"))  # fmt: skip
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.{kind}"}
        for place, (path, kind) in enumerate(kinds)
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_LogitScore").mkdir(exist_ok=True)
    ids = {"true_token_id": tokenizer.token_to_id("yes"), "false_token_id": tokenizer.token_to_id("no")}
    _write(directory / "1_LogitScore" / "config.json", ids)
    _write(
        directory / "config_sentence_transformers.json",
        {
            "__version__": {"pytorch": "2.10.0", "sentence_transformers": "5.4.0", "transformers": "5.5.0"},
            "activation_fn": "torch.nn.modules.linear.Identity",
            "default_prompt_name": "query",
            "model_type": "CrossEncoder",
            "prompts": {"query": prompt},
        },
    )
    logits = {"method": "forward", "method_output_name": "logits"}
    _write(
        directory / "sentence_bert_config.json",
        {
            "modality_config": {"message": {**logits, "format": "flat"}, "text": logits},
            "module_output_name": "causal_logits",
            "transformer_task": "text-generation",
        },
    )


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2))


def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLITS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([*_SENTENCES, *["yes\nno\n"] * 20], trainer)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in _SPECIAL])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in _PLAIN])
    assert None not in (tokenizer.token_to_id("yes"), tokenizer.token_to_id("no"))
    return tokenizer
