"""The page at `/`, which says what this server is. It has no script and names no model."""

from __future__ import annotations

from typing import Final

_PATHS: Final = (
    ("POST /v1/chat/completions", "chats, as in OpenAI's API"),
    ("POST /v1/completions", "completions"),
    ("POST /v1/responses", "OpenAI's Responses"),
    ("POST /v1/messages", "Anthropic's Messages"),
    ("POST /v1/embeddings, /rerank, /score, /classify", "vectors and scores of texts, where the model has them"),
    ("POST /tokenize, /detokenize", "tokens of a text, and back"),
    ("GET /v1/models", "the models that are served"),
    ("GET /openapi.json", "every path and field"),
    ("GET /health", "200 while requests are served at once"),
    ("GET /metrics", "Prometheus metrics"),
    ("GET /ui/", "a page: pools, targets, tenants, slow requests"),
)
_CURL: Final = """curl http://ADDRESS/v1/chat/completions -H 'Content-Type: application/json' \\
  -d '{"model": "NAME", "messages": [{"role": "user", "content": "Hello!"}]}'"""
_TITLE: Final = "Baton: an OpenAI-compatible gateway"
_HINT: Final = "In a terminal of the same machine: baton status; for a model that chats: baton chat, baton ask TEXT."


def as_text() -> str:
    """The page for a terminal."""
    width = max(len(path) for path, _ in _PATHS)
    rows = "\n".join(f"  {path:<{width}}  {words}" for path, words in _PATHS)
    return f"{_TITLE}\n\n{rows}\n\n{_CURL}\n\n{_HINT}\n"


def as_html() -> str:
    """The page for a browser."""
    rows = "".join(f"<tr><td><code>{path}</code></td><td>{words}</td></tr>" for path, words in _PATHS)
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{_TITLE}</title>"
        f"<h1>{_TITLE}</h1><table>{rows}</table><pre>{_CURL}</pre><p>{_HINT}</p>"
        '<p><a href="ui/">page of this deployment</a> · <a href="openapi.json">openapi.json</a> · '
        '<a href="metrics">metrics</a></p></html>\n'
    )


HEADERS: Final = {"Content-Security-Policy": "default-src 'none'", "X-Content-Type-Options": "nosniff"}
"""Nothing is loaded or run on the page."""
