"""The helper process that holds a large tokenizer: bounded in memory, killed when it takes too long."""

from __future__ import annotations

import dataclasses

import msgspec

from baton_gateway.answers.formats import reasoning_marks
from baton_gateway.errors import TOKENIZER_FAILED, BundleError, RefusedError, TokenizerError
from baton_gateway.helper_processes.helper_main import answer_questions
from baton_gateway.text.encoding import PromptText, encode_prompt
from baton_gateway.text.returned_memory import limit_malloc, return_memory
from baton_gateway.text.revision_text import TextModel, load_text_model
from baton_gateway.text.token_pieces import decoder_of, special_tokens
from baton_gateway.text.tokenizer_process import (
    Answer,
    BundleRefused,
    Decoded,
    DecodeIds,
    Encoded,
    EncodeText,
    LoadedTokenizer,
    LoadTokenizer,
    Question,
    TokenizerFailed,
)

MAX_MEMORY_BYTES = 4 << 30
"""The limit on address space; a vocabulary of 256,000 tokens takes some 300 MB while it loads."""
LARGE_QUESTION_BYTES = 128 << 10


class TokenizerServer:
    """Answers questions with the loaded tokenizer."""

    def __init__(self) -> None:
        self._model: TextModel | None = None

    def answer(self, question: Question) -> Answer:
        match question:
            case LoadTokenizer(data, bundle_hash):
                try:
                    self._model = load_text_model(data, bundle_hash)
                except BundleError as error:
                    return BundleRefused(str(error))
                return _describe(self._model)
            case EncodeText(text, is_rendered, max_tokens, cuts):
                assert self._model is not None
                try:
                    return Encoded(encode_prompt(PromptText(self._model, text, is_rendered, max_tokens, "", cuts)))
                except RefusedError as refusal:
                    return TokenizerFailed() if refusal.problem.code == TOKENIZER_FAILED else Encoded(None)
            case DecodeIds(ids):
                try:
                    return Decoded(self._model.decode(ids, skip_special=False) if self._model is not None else "")
                except TokenizerError:
                    return TokenizerFailed()


def _describe(model: TextModel) -> LoadedTokenizer:
    tokenizer = model.tokenizer
    assert tokenizer is not None
    special = special_tokens(tokenizer)
    ids = {*tokenizer.get_vocab(with_added_tokens=True).values(), *special}
    texts = ((token, tokenizer.id_to_token(token)) for token in ids)
    return LoadedTokenizer(
        bundle=dataclasses.replace(model.bundle, tokenizer_json=""),
        eos_ids=model.eos_ids,
        tokens={token: text for token, text in texts if text is not None},
        special_tokens=special,
        decoder=decoder_of(tokenizer),
        longest_token_bytes=model.longest_token_bytes,
        marks={mark: tuple(model.encode_rendered(mark)) for mark in reasoning_marks()},
    )


def main() -> None:
    """Answer questions until stdin ends."""
    limit_malloc()
    server = TokenizerServer()
    questions: msgspec.msgpack.Decoder[Question] = msgspec.msgpack.Decoder(Question)
    encode = msgspec.msgpack.Encoder().encode

    def answer(body: bytes) -> bytes:
        encoded = encode(server.answer(questions.decode(body)))
        if len(body) > LARGE_QUESTION_BYTES:
            return_memory()
        return encoded

    answer_questions(lambda body: (answer(body),), MAX_MEMORY_BYTES)


if __name__ == "__main__":
    main()
