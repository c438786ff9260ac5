"""Small tokenizers of both families, trained on a few sentences in milliseconds, and the bundles that workers make of
them.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from dataclasses import dataclass, replace

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "A baton is handed from one runner to the next, and nobody drops it.",
    "Prefill computes the prompt; decode draws one token after another.",
    "Grüße aus Köln, là-bas, 東京 und Αθήνα.",
    "def add(a, b):\n    return a + b\n",
)
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}{{ raise_exception('unknown role') }}{% endif %}"
    "<|{{ message['role'] }}|>\n{{ message['content'] | trim }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
TOOL_TEMPLATE = (
    "{% if tools %}<|system|>\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|end|>\n{% endif %}"
    "{% for message in messages %}<|{{ message.role }}|>\n"
    "{% if message.reasoning_content %}<think>\n{{ message.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ message.content }}{% for call in message.tool_calls %}\n<tool_call>\n"
    "{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}\n</tool_call>{% endfor %}"
    "<|end|>\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
"""A model that thinks and calls tools in the ways of Qwen3."""
SPECIAL = ("<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<pad>")


@dataclass(frozen=True)
class MadeTokenizer:
    """A tokenizer with the files around it, as a model directory holds them."""

    tokenizer: Tokenizer
    config: dict[str, object]
    generation: dict[str, object] | None = None
    template: str = CHAT_TEMPLATE

    @property
    def eos_id(self) -> int:
        return self.id_of("<|end|>")

    def id_of(self, token: str) -> int:
        token_id = self.tokenizer.token_to_id(token)
        assert token_id is not None
        return int(token_id)

    def files(self) -> dict[str, str | None]:
        return {
            "tokenizer.json": self.tokenizer.to_str(),
            "tokenizer_config.json": json.dumps(self.config),
            "chat_template.jinja": self.template,
            "generation_config.json": None if self.generation is None else json.dumps(self.generation),
            "config.json": json.dumps({"eos_token_id": self.eos_id}),
        }

    def bundle(self) -> bytes:
        return self._bundle

    @functools.cached_property
    def _bundle(self) -> bytes:
        return make_bundle(self.files())


def make_bundle(files: dict[str, str | None]) -> bytes:
    return json.dumps(files).encode()


def bundle_hash(bundle: bytes) -> str:
    return hashlib.sha256(bundle).hexdigest()


def byte_level(vocab_size: int = 400) -> MadeTokenizer:
    """Like GPT-2 and Llama 3."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return _finish(tokenizer)


@functools.cache
def large_byte_level(vocab_size: int = 128_000) -> MadeTokenizer:
    """As large as Llama 3's: made of letters, pairs of them, and pairs of such pairs, rather than trained."""
    small = json.loads(byte_level().tokenizer.to_str())
    vocabulary, merges = small["model"]["vocab"], small["model"]["merges"]
    parts = [letter for letter in vocabulary if len(letter) == 1 and letter.isalpha()]
    for _ in range(2):
        pairs = itertools.product(parts, parts)
        added = list(itertools.islice(pairs, vocab_size - len(vocabulary)))
        for left, right in added:
            if left + right not in vocabulary:
                vocabulary[left + right] = len(vocabulary)
                merges.append([left, right])
        parts = [left + right for left, right in added]
    return replace(byte_level(), tokenizer=Tokenizer.from_str(json.dumps(small)))


def sentencepiece(vocab_size: int = 480) -> MadeTokenizer:
    """Like Llama 2: `▁` for spaces, byte fallback, one leading space dropped in decoding."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<unk>", *SPECIAL, *byte_tokens],
        limit_alphabet=60,
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return _finish(_without_special(tokenizer, byte_tokens))


def metaspace(vocab_size: int = 200) -> MadeTokenizer:
    """A Unigram model with the Metaspace decoder."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, special_tokens=["<unk>", *SPECIAL], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return _finish(tokenizer)


def word_pieces(vocab_size: int = 200) -> MadeTokenizer:
    """A decoder that does not work piece by piece (BERT's)."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=vocab_size, special_tokens=["<unk>", *SPECIAL], show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return _finish(tokenizer)


def _without_special(tokenizer: Tokenizer, tokens: list[str]) -> Tokenizer:
    """Byte tokens are ordinary ones in real vocabularies; the trainer can only add them as special ones."""
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [entry for entry in content["added_tokens"] if entry["content"] not in tokens]
    return Tokenizer.from_str(json.dumps(content))


def _finish(tokenizer: Tokenizer) -> MadeTokenizer:
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    begin = tokenizer.token_to_id("<|begin|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", begin)]
    )
    config: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|begin|>",
        "eos_token": {"__type": "AddedToken", "content": "<|end|>", "special": True},
        "pad_token": "<pad>",
    }
    return MadeTokenizer(tokenizer, config)
