"""Text of one model revision: prompts to token ids, and what is needed to turn ids into text again.

Loaded from the bundle that the revision's workers hand over. The chat template is rendered by `templates`, out of this
process; increments of generated text are `choice_text`'s. A large tokenizer lives in processes apart
(`tokenizer_process`): here is what its tokens are written as.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tokenizers import Tokenizer

from baton_gateway.answers.formats import AS_FOUND, UNKNOWN_FORMAT, AnswerFormat, FormatNames
from baton_gateway.answers.output_parser import OutputParser
from baton_gateway.errors import (
    BundleError,
    is_library_error,
    library_error,
)
from baton_gateway.text.bundle import Bundle, parse_bundle
from baton_gateway.text.choice_text import ChoiceText
from baton_gateway.text.detokenizer import detokenizer
from baton_gateway.text.longest_token import longest_token_bytes
from baton_gateway.text.token_json import MAX_KEPT_TOKENS, TokenJson, token_json
from baton_gateway.text.token_pieces import PieceTable, decoder_of, piece_table, special_tokens
from baton_gateway.text.tokenizer_process import Loaded, TokenizerApart


class Shown(enum.Enum):
    """Which special tokens become text."""

    NOTHING = enum.auto()
    THOUGHTS = enum.auto()
    """Those around thoughts."""
    CALLS = enum.auto()
    """Those around thoughts and calls."""
    ALL = enum.auto()


@dataclass(frozen=True, slots=True)
class Pieces:
    """What ids become."""

    hidden_ids: frozenset[int]
    """Special tokens that do not become text."""
    table: PieceTable | None
    """None for a tokenizer whose decoder does not work piece by piece."""


@dataclass(frozen=True, slots=True)
class TextModel:
    """Tokenizer, template and special tokens of a revision. Immutable but for its caches."""

    bundle: Bundle
    tokenizer: Tokenizer | None
    """None: it is in `apart`."""
    eos_ids: tuple[int, ...]
    pieces: Mapping[Shown, Pieces]
    longest_token_bytes: int | None
    """Of a prompt's UTF-8 text that one token stands for; None: no bound is known."""
    answer_format: AnswerFormat = UNKNOWN_FORMAT
    """How the model writes thoughts and calls."""
    apart: TokenizerApart | None = None
    tokens: Mapping[int, str] = field(default_factory=dict)
    """The vocabulary of a tokenizer that is apart."""
    marks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Ids of texts that requests need beside prompts, for a tokenizer that is apart."""
    kept_json: dict[int, TokenJson] = field(default_factory=dict, compare=False, repr=False)
    """Of tokens whose log probabilities were told."""

    def encode_rendered(self, *pieces: str) -> list[int]:
        """Ids of a rendered chat, or of its pieces: the template wrote every special token that belongs there."""
        return self._encode(pieces, False)

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a plain prompt, with the beginning-of-text token that the tokenizer adds."""
        return self._encode((text,), True)

    def mark_ids(self, mark: str) -> tuple[int, ...]:
        """Ids of one of the marks that `answers` knows."""
        return tuple(self.encode_rendered(mark)) if self.apart is None else self.marks[mark]

    def _encode(self, pieces: Sequence[str], add_special_tokens: bool) -> list[int]:
        """As a batch, also of one: that lets other threads run meanwhile, which `encode` does not. Raises
        TokenizerError.
        """
        assert self.tokenizer is not None
        try:
            encodings = self.tokenizer.encode_batch_fast(pieces, add_special_tokens=add_special_tokens)
        except BaseException as error:  # noqa: BLE001 (panics are no Exception)
            raise library_error(error) from None
        return [token for encoding in encodings for token in encoding.ids]

    def token_text(self, token: int) -> str | None:
        """A token as the vocabulary has it; None for an id that it has not."""
        if self.tokenizer is None:
            return self.tokens.get(token)
        text: str | None = self.tokenizer.id_to_token(token)
        return text

    def decode(self, ids: list[int], skip_special: bool = True) -> str:
        """Raises TokenizerError."""
        assert self.tokenizer is not None
        try:
            text: str = self.tokenizer.decode(ids, skip_special_tokens=skip_special)
        except BaseException as error:  # noqa: BLE001 (panics are no Exception)
            raise library_error(error) from None
        return text

    def choice_text(
        self,
        stops: tuple[str, ...],
        skip_special: bool,
        continues: bool,
        text_offset: int = 0,
        reader: OutputParser | None = None,
        includes_stop: bool = False,
    ) -> ChoiceText:
        """The empty text of a new choice; `continues`: it goes on after a prompt rather than beginning anew. `reader`:
        of its thoughts and calls, whose marks it sees whatever the client wants to see. `includes_stop`: what ends it
        is a part of it.
        """
        shown = Shown.NOTHING if skip_special else Shown.ALL
        if reader is not None and skip_special:
            shown = Shown.CALLS if reader.reads_calls else Shown.THOUGHTS
        pieces = self.pieces[shown]
        if reader is not None and pieces.table is not None:  # else a token's text may come later than the token
            reader.expect_tokens()
        growing = detokenizer(self.tokenizer, pieces.table, pieces.hidden_ids, continues)
        return ChoiceText(growing, stops, text_offset, reader, includes_stop)

    def token_bytes(self, token: int) -> bytes:
        """What one token stands for by itself, special tokens included."""
        if (table := self.pieces[Shown.ALL].table) is not None:
            return table.piece(token).data
        return self.decode([token], skip_special=False).encode()

    def json_of(self, token: int) -> TokenJson:
        """The token as JSON says it."""
        known = self.kept_json.get(token)
        if known is None:
            known = token_json(self.token_bytes(token))
            if len(self.kept_json) >= MAX_KEPT_TOKENS:
                self.kept_json.clear()
            self.kept_json[token] = known
        return known


def load_text_model(data: bytes, expected_hash: str, formats: FormatNames = AS_FOUND) -> TextModel:
    """Check and load a bundle. Raises BundleError. Holds the interpreter, so also an event loop in another thread: for
    0.1 s and more where the vocabulary is large.
    """
    try:
        return _load_text_model(data, expected_hash, formats)
    except BundleError:
        raise
    except BaseException as error:  # a file that nobody foresaw, or a panic of the library
        raise unforeseen(error) from error


def unforeseen(error: BaseException) -> BundleError:
    """What to raise where using a bundle raised `error`. Raises what has nothing to do with the bundle."""
    if not is_library_error(error):
        raise error
    return BundleError(f"tokenizer bundle: it cannot be used: {type(error).__name__}: {str(error)[:200]}")


def _load_text_model(data: bytes, expected_hash: str, formats: FormatNames) -> TextModel:
    bundle = parse_bundle(data, expected_hash)
    tokenizer = _tokenizer(bundle)
    eos = bundle.special_tokens.get("eos_token")
    eos_id = tokenizer.token_to_id(eos) if eos else None
    eos_ids = dict.fromkeys([*bundle.eos_ids, *([] if eos_id is None else [eos_id])])
    form = formats.of(bundle.chat_template or "")
    longest = longest_token_bytes(bundle.tokenizer_json)
    special = special_tokens(tokenizer)
    bundle = replace(bundle, control_tokens=tuple(special.values()))
    pieces = _pieces(special, decoder_of(tokenizer), tokenizer.id_to_token, form)
    return TextModel(bundle, tokenizer, tuple(eos_ids), pieces, longest, _with_tokens(form, special))


def text_model_apart(apart: TokenizerApart, loaded: Loaded, formats: FormatNames = AS_FOUND) -> TextModel | None:
    """The model of a tokenizer that was loaded apart; None when its decoder needs it here."""
    form = formats.of(loaded.bundle.chat_template or "")
    pieces = _pieces(loaded.special_tokens, loaded.decoder, loaded.tokens.get, form)
    if any(each.table is None for each in pieces.values()):
        return None
    return TextModel(
        bundle=loaded.bundle,
        tokenizer=None,
        eos_ids=loaded.eos_ids,
        pieces=pieces,
        longest_token_bytes=loaded.longest_token_bytes,
        answer_format=_with_tokens(form, loaded.special_tokens),
        apart=apart,
        tokens=loaded.tokens,
        marks=loaded.marks,
    )


def _pieces(
    special: Mapping[int, str], decoder: bytes, text_of: Callable[[int], str | None], form: AnswerFormat
) -> dict[Shown, Pieces]:
    """One table for each set of hidden tokens; most models have two."""
    marks = {Shown.THOUGHTS: form.marks(with_calls=False), Shown.CALLS: form.marks(with_calls=True)}
    hidden: dict[Shown, frozenset[int]] = {Shown.NOTHING: frozenset(special), Shown.ALL: frozenset()}
    for shown, texts in marks.items():
        hidden[shown] = frozenset(token for token, text in special.items() if not _is_within(text, texts))
    made = {ids: Pieces(ids, piece_table(decoder, text_of, ids)) for ids in set(hidden.values())}
    return {shown: made[ids] for shown, ids in hidden.items()}


def _with_tokens(form: AnswerFormat, special: Mapping[int, str]) -> AnswerFormat:
    """The format with those of its marks that are special tokens."""
    marks = form.marks(with_calls=True)
    return replace(form, tokens=tuple((text, token) for token, text in special.items() if _is_within(text, marks)))


def _is_within(token: str, marks: frozenset[str]) -> bool:
    """A mark may be longer than one token."""
    return any(token in mark for mark in marks)


def _tokenizer(bundle: Bundle) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_str(bundle.tokenizer_json)
    except BaseException as error:
        if not is_library_error(error):
            raise
        raise BundleError(f"tokenizer bundle: tokenizer.json: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
