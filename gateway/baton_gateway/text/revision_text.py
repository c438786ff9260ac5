"""The tokenizer of one model revision: prompts to token ids, and what is needed to turn ids into text again.

The model is loaded from the bundle that the revision's workers send. `template_renderer` renders its chat template and
`choice_text` the increments of generated text. A large tokenizer runs in helper processes (`tokenizer_process`); then
only the texts of its tokens are here.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tokenizers import Tokenizer

from baton_gateway.answers.formats import DETECTED_FORMATS, UNKNOWN_FORMAT, AnswerFormat, FormatNames
from baton_gateway.answers.output_parser import OutputParser
from baton_gateway.errors import (
    BundleError,
    is_library_error,
    library_error,
)
from baton_gateway.text.bundle import Bundle, parse_bundle
from baton_gateway.text.choice_text import ChoiceText
from baton_gateway.text.detokenizer import make_detokenizer
from baton_gateway.text.longest_token import longest_token_bytes
from baton_gateway.text.token_json import MAX_CACHED_TOKENS, TokenJson, token_json
from baton_gateway.text.token_pieces import PieceTable, decoder_of, piece_table, special_tokens
from baton_gateway.text.tokenizer_process import LoadedTokenizer, TokenizerProcess


class Shown(enum.Enum):
    """The special tokens that become text."""

    NOTHING = enum.auto()
    REASONING = enum.auto()
    """Marks around reasoning."""
    CALLS = enum.auto()
    """Marks around reasoning and calls."""
    ALL = enum.auto()


@dataclass(frozen=True, slots=True)
class Pieces:
    """How ids become text."""

    hidden_ids: frozenset[int]
    """Special tokens that do not become text."""
    table: PieceTable | None
    """None for a tokenizer whose decoder does not work token by token."""


@dataclass(frozen=True, slots=True)
class TextModel:
    """Tokenizer, template and special tokens of a revision. Immutable except for its caches."""

    bundle: Bundle
    tokenizer: Tokenizer | None
    """None: it runs in `process`."""
    eos_ids: tuple[int, ...]
    pieces: Mapping[Shown, Pieces]
    longest_token_bytes: int | None
    """The most UTF-8 bytes of a prompt that one token stands for; None: no bound is known."""
    answer_format: AnswerFormat = UNKNOWN_FORMAT
    """How the model writes reasoning and calls."""
    process: TokenizerProcess | None = None
    """The helper processes of a large tokenizer."""
    tokens: Mapping[int, str] = field(default_factory=dict)
    """The vocabulary of a tokenizer in `process`."""
    marks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Ids of the marks around reasoning, for a tokenizer in `process`."""
    token_json_cache: dict[int, TokenJson] = field(default_factory=dict, compare=False, repr=False)
    """JSON of tokens whose log probabilities were reported."""

    def encode_rendered(self, *pieces: str) -> list[int]:
        """Tokenise a rendered chat, or its pieces: the template has written all special tokens."""
        return self._encode(pieces, False)

    def encode_prompt(self, text: str) -> list[int]:
        """Tokenise a plain prompt; the tokenizer adds its beginning-of-text token."""
        return self._encode((text,), True)

    def mark_ids(self, mark: str) -> tuple[int, ...]:
        """Return the ids of a mark around reasoning."""
        return tuple(self.encode_rendered(mark)) if self.process is None else self.marks[mark]

    def _encode(self, pieces: Sequence[str], add_special_tokens: bool) -> list[int]:
        """Tokenise as a batch, even of one piece: unlike `encode` it lets other threads run. Raises TokenizerError."""
        assert self.tokenizer is not None
        try:
            encodings = self.tokenizer.encode_batch_fast(pieces, add_special_tokens=add_special_tokens)
        except BaseException as error:  # noqa: BLE001 (a panic is not an Exception)
            raise library_error(error) from None
        return [token for encoding in encodings for token in encoding.ids]

    def token_text(self, token: int) -> str | None:
        """Return a token as the vocabulary writes it; None for an unknown id."""
        if self.tokenizer is None:
            return self.tokens.get(token)
        text: str | None = self.tokenizer.id_to_token(token)
        return text

    def decode(self, ids: list[int], skip_special: bool = True) -> str:
        """Return the text of ids. Raises TokenizerError."""
        assert self.tokenizer is not None
        try:
            text: str = self.tokenizer.decode(ids, skip_special_tokens=skip_special)
        except BaseException as error:  # noqa: BLE001 (a panic is not an Exception)
            raise library_error(error) from None
        return text

    def choice_text(
        self,
        stops: tuple[str, ...],
        skip_special: bool,
        continues: bool,
        text_offset: int = 0,
        parser: OutputParser | None = None,
        includes_stop: bool = False,
    ) -> ChoiceText:
        """Return the empty text of a new choice.

        `continues`: it continues the prompt's text. `parser`: reads reasoning and calls, and sees their marks whatever
        the client asked to see. `includes_stop`: the stop that ends the text belongs to it.
        """
        shown = Shown.NOTHING if skip_special else Shown.ALL
        if parser is not None and skip_special:
            shown = Shown.CALLS if parser.reads_calls else Shown.REASONING
        pieces = self.pieces[shown]
        if parser is not None and pieces.table is not None:  # without a table a token's text may come after the token
            parser.expect_tokens()
        detokenizer = make_detokenizer(self.tokenizer, pieces.table, pieces.hidden_ids, continues)
        return ChoiceText(detokenizer, stops, text_offset, parser, includes_stop)

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that one token stands for, special tokens included."""
        if (table := self.pieces[Shown.ALL].table) is not None:
            return table.piece(token).data
        return self.decode([token], skip_special=False).encode()

    def token_json_of(self, token: int) -> TokenJson:
        """Return the JSON of a token, from the cache or anew."""
        cached = self.token_json_cache.get(token)
        if cached is None:
            cached = token_json(self.token_bytes(token))
            if len(self.token_json_cache) >= MAX_CACHED_TOKENS:
                self.token_json_cache.clear()
            self.token_json_cache[token] = cached
        return cached


def load_text_model(data: bytes, expected_hash: str, formats: FormatNames = DETECTED_FORMATS) -> TextModel:
    """Check and load a bundle. Raises BundleError.

    Loading holds the interpreter, and so an event loop in another thread: for 0.1 s or more if the vocabulary is large.
    """
    try:
        return _load_text_model(data, expected_hash, formats)
    except BundleError:
        raise
    except BaseException as error:  # an unexpected file, or a panic of the library
        raise bundle_error(error) from error


def bundle_error(error: BaseException) -> BundleError:
    """Convert an unexpected error from using a bundle. Raises `error` itself if the bundle is not its cause."""
    if not is_library_error(error):
        raise error
    return BundleError(f"tokenizer bundle: it cannot be used: {type(error).__name__}: {str(error)[:200]}")


def _load_text_model(data: bytes, expected_hash: str, formats: FormatNames) -> TextModel:
    bundle = parse_bundle(data, expected_hash)
    tokenizer = _tokenizer(bundle)
    eos = bundle.special_tokens.get("eos_token")
    eos_id = tokenizer.token_to_id(eos) if eos else None
    eos_ids = dict.fromkeys([*bundle.eos_ids, *([] if eos_id is None else [eos_id])])
    form = formats.resolve(bundle.chat_template or "")
    longest = longest_token_bytes(bundle.tokenizer_json)
    special = special_tokens(tokenizer)
    bundle = replace(bundle, control_tokens=tuple(special.values()))
    pieces = _pieces(special, decoder_of(tokenizer), tokenizer.id_to_token, form)
    return TextModel(bundle, tokenizer, tuple(eos_ids), pieces, longest, _with_tokens(form, special))


def text_model_of_process(
    process: TokenizerProcess, loaded: LoadedTokenizer, formats: FormatNames = DETECTED_FORMATS
) -> TextModel | None:
    """Build the model of a tokenizer that a helper process loaded; None if its decoder needs the tokenizer here."""
    form = formats.resolve(loaded.bundle.chat_template or "")
    pieces = _pieces(loaded.special_tokens, loaded.decoder, loaded.tokens.get, form)
    if any(group.table is None for group in pieces.values()):
        return None
    return TextModel(
        bundle=loaded.bundle,
        tokenizer=None,
        eos_ids=loaded.eos_ids,
        pieces=pieces,
        longest_token_bytes=loaded.longest_token_bytes,
        answer_format=_with_tokens(form, loaded.special_tokens),
        process=process,
        tokens=loaded.tokens,
        marks=loaded.marks,
    )


def _pieces(
    special: Mapping[int, str], decoder: bytes, text_of: Callable[[int], str | None], form: AnswerFormat
) -> dict[Shown, Pieces]:
    """Build one table for each set of hidden tokens; most models have two."""
    marks = {Shown.REASONING: form.marks(with_calls=False), Shown.CALLS: form.marks(with_calls=True)}
    hidden: dict[Shown, frozenset[int]] = {Shown.NOTHING: frozenset(special), Shown.ALL: frozenset()}
    for shown, texts in marks.items():
        hidden[shown] = frozenset(token for token, text in special.items() if not _is_within(text, texts))
    tables = {ids: Pieces(ids, piece_table(decoder, text_of, ids)) for ids in set(hidden.values())}
    return {shown: tables[ids] for shown, ids in hidden.items()}


def _with_tokens(form: AnswerFormat, special: Mapping[int, str]) -> AnswerFormat:
    """Return the format with the marks that are special tokens."""
    marks = form.marks(with_calls=True)
    return replace(form, tokens=tuple((text, token) for token, text in special.items() if _is_within(text, marks)))


def _is_within(token: str, marks: frozenset[str]) -> bool:
    """Return True if a token is part of a mark, which may have several tokens."""
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
