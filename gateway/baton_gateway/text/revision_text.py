"""Text of one model revision: prompts to token ids, and what is needed to turn ids into text again.

Loaded from the bundle that the revision's workers hand over. The chat template is rendered by `templates`, out of this
process; increments of generated text are `choice_text`'s.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Tokenizer

from baton_gateway.errors import BundleError
from baton_gateway.text.bundle import Bundle, parse_bundle
from baton_gateway.text.choice_text import ChoiceText
from baton_gateway.text.detokenizer import detokenizer
from baton_gateway.text.longest_token import longest_token_bytes
from baton_gateway.text.token_pieces import PieceTable, piece_table


@dataclass(frozen=True, slots=True)
class TextModel:
    """Tokenizer, template and special tokens of a revision. Immutable but for the caches in its piece tables."""

    bundle: Bundle
    tokenizer: Tokenizer
    eos_ids: tuple[int, ...]
    plain_pieces: PieceTable | None
    """Pieces without special tokens; None for a tokenizer whose decoder does not work piece by piece."""
    all_pieces: PieceTable | None
    longest_token_bytes: int | None
    """Of a prompt's UTF-8 text that one token stands for; None: no bound is known."""

    def encode_rendered(self, text: str) -> list[int]:
        """Ids of a rendered chat: the template wrote every special token that belongs there."""
        return self._encode(text, False)

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a plain prompt, with the beginning-of-text token that the tokenizer adds."""
        return self._encode(text, True)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """As a batch of one: that lets other threads run meanwhile, which `encode` does not."""
        [encoding] = self.tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def decode(self, ids: list[int], skip_special: bool = True) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=skip_special)
        return text

    def choice_text(
        self, stops: tuple[str, ...], skip_special: bool, continues: bool, text_offset: int = 0
    ) -> ChoiceText:
        """The empty text of a new choice; `continues`: it goes on after a prompt rather than beginning anew."""
        table = self.plain_pieces if skip_special else self.all_pieces
        return ChoiceText(detokenizer(self.tokenizer, table, skip_special, continues), stops, text_offset)

    def token_bytes(self, token: int) -> bytes:
        """What one token stands for by itself, special tokens included."""
        if self.all_pieces is not None:
            return self.all_pieces.piece(token).data
        text: str = self.tokenizer.decode([token], skip_special_tokens=False)
        return text.encode()


def load_text_model(data: bytes, expected_hash: str) -> TextModel:
    """Check and load a bundle. Raises BundleError. Takes a second for a large vocabulary: call it
    off the event loop.
    """
    bundle = parse_bundle(data, expected_hash)
    tokenizer = _tokenizer(bundle)
    eos = bundle.special_tokens.get("eos_token")
    eos_id = tokenizer.token_to_id(eos) if eos else None
    eos_ids = dict.fromkeys([*bundle.eos_ids, *([] if eos_id is None else [eos_id])])
    pieces = piece_table(tokenizer, True), piece_table(tokenizer, False)
    return TextModel(bundle, tokenizer, tuple(eos_ids), *pieces, longest_token_bytes(bundle.tokenizer_json))


def _tokenizer(bundle: Bundle) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_str(bundle.tokenizer_json)
    except Exception as error:
        raise BundleError(f"tokenizer bundle: tokenizer.json: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
