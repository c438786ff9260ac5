"""Incremental detokenisation: never a broken character, and in the end the text of all ids.

A character whose bytes have not all come is held back. One that never completes becomes U+FFFD, as in the tokenizers
library: one per byte for SentencePiece byte tokens, and Unicode's substitution of maximal subparts for byte-level ones.
One difference: if a run of byte tokens ends broken, that library writes all of it as U+FFFD, while here its complete
characters have been delivered already.
"""

from __future__ import annotations

import codecs
from typing import Protocol

from tokenizers import Tokenizer

from baton_gateway.errors import library_error
from baton_gateway.text.token_pieces import DecoderKind, LeadingSpace, PieceTable

REPLACEMENT = "�"


class Detokenizer(Protocol):
    """Detokenises one choice. `continues` at construction: the text continues a prompt, so its first space is kept."""

    def push(self, token: int) -> str:
        """Return the text that `token` makes final; empty while a character is incomplete."""
        ...

    def flush(self) -> str:
        """Return what is still held back, at the end."""
        ...


def make_detokenizer(
    tokenizer: Tokenizer | None, table: PieceTable | None, hidden_ids: frozenset[int], continues: bool
) -> Detokenizer:
    """Build the detokenizer for a model. `hidden_ids`: special tokens that are not shown, the same as in `table`.

    Without a table a tokenizer is needed.
    """
    if table is None:
        assert tokenizer is not None
        return WindowDetokenizer(tokenizer, hidden_ids)
    if table.kind is DecoderKind.BYTE_LEVEL:
        return ByteLevelDetokenizer(table)
    return SentencePieceDetokenizer(table, continues)


class ByteLevelDetokenizer:
    """For byte-level tokenizers: all tokens are bytes of one UTF-8 stream."""

    __slots__ = ("_decode", "_table")

    def __init__(self, table: PieceTable) -> None:
        self._table = table
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def push(self, token: int) -> str:
        return self._decode(self._table.piece(token).data)

    def flush(self) -> str:
        return self._decode(b"", True)


class SentencePieceDetokenizer:
    """For SentencePiece: tokens are texts, except byte tokens, whose runs are UTF-8."""

    __slots__ = ("_leading", "_pending", "_run_is_broken", "_table")

    def __init__(self, table: PieceTable, continues: bool) -> None:
        self._table = table
        self._leading = LeadingSpace.KEEP if continues else table.leading_space
        self._pending = b""
        self._run_is_broken = False

    def push(self, token: int) -> str:
        piece = self._table.piece(token)
        if piece.is_skipped:
            return ""
        text = self._push_byte(piece.data) if piece.is_byte else self.flush() + self._strip(piece.text)
        if not piece.is_byte:
            self._run_is_broken = False
        elif self._leading is LeadingSpace.DROP_IN_FIRST_TOKEN:
            self._leading = LeadingSpace.KEEP
        return text

    def flush(self) -> str:
        held, self._pending = self._pending, b""
        return self._strip(REPLACEMENT * len(held))

    def _push_byte(self, data: bytes) -> str:
        if self._run_is_broken:
            return self._strip(REPLACEMENT)
        self._pending += data
        try:
            text = self._pending.decode()
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data":
                return ""
            self._run_is_broken = True
            return self.flush()
        self._pending = b""
        return self._strip(text)

    def _strip(self, text: str) -> str:
        if self._leading is LeadingSpace.KEEP or not text:
            return text
        leading, self._leading = self._leading, LeadingSpace.KEEP
        return text.lstrip(" ") if leading is LeadingSpace.DROP_IN_FIRST_TOKEN else text.removeprefix(" ")


class WindowDetokenizer:
    """For any other tokenizer: decodes a small window of ids before and after each new one with the library."""

    __slots__ = ("_hidden_ids", "_ids", "_read", "_start", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, hidden_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._hidden_ids = hidden_ids
        self._ids: list[int] = []
        self._start = 0
        self._read = 0

    def push(self, token: int) -> str:
        if token in self._hidden_ids:
            return ""
        self._ids.append(token)
        text = self._new_text()
        if not text or text.endswith(REPLACEMENT):
            return ""
        self._advance()
        return text

    def flush(self) -> str:
        text = self._new_text()
        self._advance()
        return text

    def _new_text(self) -> str:
        known = self._decode(self._ids[self._start : self._read])
        return self._decode(self._ids[self._start :])[len(known) :]

    def _advance(self) -> None:
        self._start, self._read = self._read, len(self._ids)

    def _decode(self, ids: list[int]) -> str:
        """Decode ids. Raises TokenizerError."""
        try:
            text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        except BaseException as error:  # noqa: BLE001 (a panic is not an Exception)
            raise library_error(error) from None
        return text
