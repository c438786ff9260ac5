"""Folders of tiny embedding models and classifiers, and the transformers models that they hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from baton_testing.engine.models import FAMILIES, TINY, write_random_weights
from baton_wire.models.pooling import Pooling

_FLAGS = {
    Pooling.FIRST: "pooling_mode_cls_token",
    Pooling.MEAN: "pooling_mode_mean_tokens",
    Pooling.LAST: "pooling_mode_lasttoken",
}
PROMPTS = {"query": "Instruct: Find passages that answer\nQuery:", "document": ""}


def write_embedding_model(
    directory: Path, family: str, method: Pooling, *, normalised: bool = True, seed: int = 0, **overrides: Any
) -> Any:
    """Save a random model without a head, and its pooling; returns the model in float32."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(**{**TINY, **FAMILIES[family], **overrides})
    model = AutoModel.from_config(config, attn_implementation="eager")
    write_random_weights(model, directory)
    write_pooling(directory, method, model.config.hidden_size, normalised=normalised)
    return model.eval()


def write_pooling(directory: Path, method: Pooling, width: int, *, normalised: bool = True) -> None:
    """Write the files that sentence-transformers writes next to a transformers model."""
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), *([("2_Normalize", "Normalize")] if normalised else [])]
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for place, (path, kind) in enumerate(kinds)
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir(exist_ok=True)
    flags = {flag: own is method for own, flag in _FLAGS.items()}
    pooling = {"word_embedding_dimension": width, **flags, "pooling_mode_max_tokens": False, "include_prompt": True}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    options = {"prompts": PROMPTS, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    (directory / "config_sentence_transformers.json").write_text(json.dumps(options))


def write_classifier(directory: Path, family: str, labels: int, **overrides: Any) -> Any:
    """Save a random model with a classification head; returns the model in float32."""
    torch.manual_seed(labels)
    config = AutoConfig.for_model(**{**TINY, **FAMILIES[family], **overrides}, num_labels=labels)
    config.pad_token_id = None
    model = AutoModelForSequenceClassification.from_config(config, attn_implementation="eager")
    write_random_weights(model, directory)
    return model.eval()
