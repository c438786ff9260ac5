"""Paths of the APIs spoken here that a generating model does not serve, each with what would serve it."""

from __future__ import annotations

from baton_gateway.errors import INVALID, Problem

_EMBEDDINGS = "An embedding model behind a server such as vLLM, or text-embeddings-inference, serves it."
_RANKING = "A reranking model behind a server such as vLLM, or text-embeddings-inference, serves it."
_AUDIO = "A speech model behind a server such as vLLM or Speaches serves it."
_IMAGES = "An image model behind a server of its own serves it."
_STORED = "Answers are not kept: send the whole conversation with each request."
_BATCHES = "`baton batch` answers files of requests; over HTTP send them one by one."

_REASONS = {
    "/v1/embeddings": f"Embeddings are not served here: the models generate text. {_EMBEDDINGS}",
    "/embeddings": f"Embeddings are not served here: the models generate text. {_EMBEDDINGS}",
    "/pooling": f"Embeddings are not served here: the models generate text. {_EMBEDDINGS}",
    "/v1/rerank": f"Reranking is not served here: the models generate text. {_RANKING}",
    "/v2/rerank": f"Reranking is not served here: the models generate text. {_RANKING}",
    "/rerank": f"Reranking is not served here: the models generate text. {_RANKING}",
    "/v1/score": f"Scoring of pairs is not served here: the models generate text. {_RANKING}",
    "/score": f"Scoring of pairs is not served here: the models generate text. {_RANKING}",
    "/v1/moderations": "Moderation is not served here. A classifier behind a server of its own serves it.",
    "/v1/files": f"Files are not kept here. {_BATCHES}",
    "/v1/batches": f"Batches are not kept here. {_BATCHES}",
    "/v1/messages/batches": f"Batches are not kept here. {_BATCHES}",
}
_FAMILIES = {
    "/v1/audio/": f"Speech is not served here: the models generate text. {_AUDIO}",
    "/v1/images/": f"Images are not served here: the models generate text. {_IMAGES}",
    "/v1/responses/": f"A response cannot be asked for again. {_STORED}",
    "/v1/conversations": f"Conversations are not kept here. {_STORED}",
}
"""Beginnings of paths."""


def refused_path(path: str) -> Problem | None:
    """What to say of a known path that is not served; None: nobody knows it."""
    reason = _REASONS.get(path) or next((told for start, told in _FAMILIES.items() if path.startswith(start)), None)
    return None if reason is None else Problem(404, INVALID, reason, None, "unsupported_path")
