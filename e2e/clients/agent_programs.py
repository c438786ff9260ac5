"""The programs of agents, each with the environment that has its packages."""

from __future__ import annotations

from e2e.clients.environment import AGENTS, FRAMEWORKS

PROGRAMS = {
    "agents_openai": AGENTS,
    "agents_pydantic_ai": AGENTS,
    "agents_litellm": AGENTS,
    "agents_by_hand": AGENTS,
    "agents_langchain": FRAMEWORKS,
    "agents_smolagents": FRAMEWORKS,
    "agents_llama_index": FRAMEWORKS,
    "agents_dspy": FRAMEWORKS,
    "agents_instructor": FRAMEWORKS,
    "agents_outlines": FRAMEWORKS,
    "agents_guidance": FRAMEWORKS,
}
