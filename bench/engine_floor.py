"""The part of a prefill that no engine on the same library can save: its matrix products and attention alone.

Everything else (norms, rotations, the KV cache, sampling, scheduling, Python) is taken for free. What `transformers`
takes over this is the greatest ratio that can be reached in exact float32 on this machine.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

REPEATS = 5


@torch.inference_mode()
def prefill_floor_s(folder: Path, batch: int, prompt: int) -> float:
    """Seconds of the products and attention of a batch of prompts; the last layer's only where they are needed."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    heads, kv_heads, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    hidden, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    rows = batch * prompt
    qkv, kv = (heads + 2 * kv_heads) * dim, 2 * kv_heads * dim
    x, attended, gated = torch.randn(rows, hidden), torch.randn(rows, heads * dim), torch.randn(rows, inner)
    weights = {
        "qkv": torch.randn(hidden, qkv),
        "kv": torch.randn(hidden, kv),
        "output": torch.randn(heads * dim, hidden),
        "gate_up": torch.randn(hidden, 2 * inner),
        "down": torch.randn(inner, hidden),
        "head": torch.randn(hidden, config["vocab_size"]),
    }
    query = torch.randn(batch, heads, prompt, dim)
    key, value = torch.randn(2, batch, kv_heads, prompt, dim)

    def layer() -> None:
        _ = x @ weights["qkv"]
        scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=heads != kv_heads)
        _ = attended @ weights["output"], x @ weights["gate_up"], gated @ weights["down"]

    def whole() -> None:
        for _ in range(layers - 1):
            layer()
        last: tuple[Tensor, ...] = (x @ weights["kv"], x[:batch] @ weights["head"])
        del last

    whole()
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        whole()
        times.append(time.perf_counter() - began)
    return median(times)
