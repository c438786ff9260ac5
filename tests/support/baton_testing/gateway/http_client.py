"""A client of one gateway that knows what a well-formed answer is."""

from __future__ import annotations

import json
from typing import Any

import aiohttp

from baton_testing.gateway.fake_worker import FakeRequest
from baton_testing.gateway.gateway_process import RunningGateway, ids_of
from baton_wire.messages.gateway_link import Prefill
from baton_wire.messages.values import SamplingParams

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "Hello"}]


class HttpClient:
    """Requests to one gateway."""

    def __init__(self, gateway: RunningGateway, http: aiohttp.ClientSession) -> None:
        self.gateway = gateway
        self.http = http
        self.pool = gateway.pool

    async def ask(self, path: str, **body: Any) -> dict[str, Any]:
        async with self.http.post(self.gateway.url(path), json=self._filled(path, body)) as got:
            content = await got.json()
            assert got.status == 200, content
            assert isinstance(content, dict)
            return content

    async def refused(self, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
        async with self.http.post(self.gateway.url(path), json=self._filled(path, body)) as got:
            content = await got.json()
            return got.status, content["error"]

    async def stream(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """The chunks; the stream must be one of well-formed events that ends with [DONE]."""
        body = self._filled(path, body | {"stream": True})
        async with self.http.post(self.gateway.url(path), json=body) as got:
            assert got.status == 200, await got.text()
            assert got.content_type == "text/event-stream"
            text = await got.text()
        assert text.endswith("\n\n")
        events = text.removesuffix("\n\n").split("\n\n")
        assert all(event.startswith("data: ") for event in events)
        assert events.pop() == "data: [DONE]"
        return [json.loads(event.removeprefix("data: ")) for event in events]

    async def named_events(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """The events of a stream in which each is named as its type."""
        async with self.http.post(self.gateway.url(path), json=body | {"stream": True}) as got:
            assert (got.status, got.content_type) == (200, "text/event-stream")
            text = await got.text()
        events: list[dict[str, Any]] = []
        for event in text.removesuffix("\n\n").split("\n\n"):
            name, data = event.split("\n")
            events.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {events[-1]['type']}"
        return events

    @staticmethod
    def _filled(path: str, body: dict[str, Any]) -> dict[str, Any]:
        default: dict[str, Any] = {"messages": USER} if path == CHAT else {"prompt": "Hello"}
        return {"model": "tiny", **default, **body}

    def prefill(self) -> Prefill:
        message = self.pool.prefill[0].of_type(Prefill)[-1]
        assert isinstance(message, Prefill)
        return message

    def prefill_of(self, number: int) -> Prefill:
        message = self.pool.prefill[0].of_type(Prefill)[number]
        assert isinstance(message, Prefill)
        return message

    def sampling(self) -> SamplingParams:
        return self.prefill().sampling

    def say(self, *texts: str) -> None:
        """Set the workers' answers to prompt choice 0, 1, …"""

        def script(request: FakeRequest) -> list[int]:
            return ids_of(texts[request.choice % len(texts)])

        for worker in self.pool.workers:
            worker.script = script


def streamed_text(chunks: list[dict[str, Any]], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content") or "" if "delta" in choice else choice["text"] for choice in choices)


def finishes(chunks: list[dict[str, Any]]) -> list[str]:
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    return [reason for reason in reasons if reason is not None]
