"""An embeddings line of a batch: its prompts for the engine, and the response body from their results."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from baton_engine.scheduling.events import PromptEncoded, SequenceSpec
from baton_gateway.openai_api.encoding_answers import embedding_body
from baton_gateway.openai_api.encoding_types import EncodeRequest
from baton_gateway.openai_api.response_encoding import AnswerHead, Usage
from baton_gateway.requests.request_events import Prompt
from baton_wire.messages.values import RequestKey

ATTEMPT = 1


class EncodingJob:
    """One request while its results arrive."""

    def __init__(self, custom_id: str, request: EncodeRequest, prompts: Sequence[Prompt], head: AnswerHead) -> None:
        self.custom_id = custom_id
        self._request, self._prompts, self._head = request, tuple(prompts), head
        self._base = hashlib.blake2b(custom_id.encode(), digest_size=12).digest()
        self._results: dict[int, bytes] = {}

    def specs(self, deadline_s: float) -> tuple[SequenceSpec, ...]:
        """The sequences of the job, one for each prompt."""
        return tuple(
            SequenceSpec(
                RequestKey(self._base + number.to_bytes(4, "big"), ATTEMPT),
                tuple(prompt.ids()),
                prompt.num_tokens,
                (0,),
                prompt.sampling,
                prompt.salt,
                deadline_s,
                encoding=prompt.encoding,
            )
            for number, prompt in enumerate(self._prompts)
        )

    def take(self, event: PromptEncoded) -> None:
        """Take the result of one prompt."""
        self._results[int.from_bytes(event.key.request[-4:], "big")] = event.values

    @property
    def is_done(self) -> bool:
        return len(self._results) == len(self._prompts)

    def body(self) -> bytes:
        """The response of a done job."""
        results = [self._results[number] for number in range(len(self._prompts))]
        usage = Usage(sum(prompt.num_tokens for prompt in self._prompts), 0)
        return b"".join(embedding_body(self._head, results, self._request.is_base64, usage))
