"""Embeddings, reranking, scores and labels over HTTP, in front of workers that only count tokens."""

from __future__ import annotations

import asyncio
import base64
import math
from array import array
from collections.abc import AsyncIterator
from operator import mul
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import RunningGateway, answer, ids_of, running_gateway, tokenizer, until
from baton_testing.gateway.http_client import CHAT, HttpClient
from baton_testing.gateway.made_tokenizers import MadeTokenizer, byte_level
from baton_wire.messages.encoding import EncodingKind, EncodingLimits, pack_floats
from baton_wire.messages.gateway_link import Cancel
from baton_wire.messages.values import Reason, Role, unpack_ids

EMBEDDINGS = "/v1/embeddings"
WIDTH = 6
FOX = "The quick brown fox jumps over the lazy dog."
EMBEDS = EncodingLimits(WIDTH)


class EncodingClient(HttpClient):
    """A client whose bodies have no prompt."""

    @staticmethod
    def _filled(path: str, body: dict[str, Any]) -> dict[str, Any]:
        return {"model": "tiny", **body} if path != CHAT else HttpClient._filled(path, body)

    def prompts(self) -> list[list[int]]:
        return [unpack_ids(message.tokens) for worker in self.pool.prefill for message in worker.encodes()]


@pytest.fixture
def limits() -> EncodingLimits:
    return EncodingLimits(WIDTH, generates=False)


@pytest.fixture
async def pool(tmp_path: Path, limits: EncodingLimits) -> AsyncIterator[FakePool]:
    """One prefill worker, and no decode worker."""
    pool = FakePool(tmp_path, tokenizer(), answer)
    await pool.add(Role.PREFILL, encoding=limits)
    yield pool
    await pool.stop()


@pytest.fixture
def client(gateway: RunningGateway, http: aiohttp.ClientSession) -> EncodingClient:
    return EncodingClient(gateway, http)


def expected(ids: list[int], width: int = WIDTH) -> list[float]:
    return [float(len(ids)), *map(float, [*reversed(ids), *[0] * width])][:width]


async def test_an_embedding_has_openais_shape_and_counts_its_prompt(client: EncodingClient) -> None:
    got = await client.ask(EMBEDDINGS, input="Grüße")
    (prompt,) = client.prompts()
    assert prompt[1:] == ids_of("Grüße"), "the tokenizer's own beginning comes first"
    assert got["object"] == "list"
    assert got["model"] == "tiny"
    assert got["data"] == [{"object": "embedding", "index": 0, "embedding": expected(prompt)}]
    assert got["usage"] == {"prompt_tokens": len(prompt), "total_tokens": len(prompt)}


@pytest.mark.parametrize(
    ("inputs", "count"),
    [(["Hello", "Grüße, Welt"], 2), ([5, 6, 7], 1), ([[5, 6], [7], [8, 9, 10]], 3), (["Hello", [5, 6]], 2)],
)
async def test_texts_and_token_ids_come_alone_and_in_lists(inputs: Any, count: int, client: EncodingClient) -> None:
    got = await client.ask(EMBEDDINGS, input=inputs)
    assert [entry["index"] for entry in got["data"]] == list(range(count))
    assert sorted(entry["embedding"] for entry in got["data"]) == sorted(map(expected, client.prompts()))
    if inputs == [5, 6, 7]:
        assert client.prompts() == [[5, 6, 7]]


async def test_base64_holds_the_same_float32_values(client: EncodingClient) -> None:
    got = await client.ask(EMBEDDINGS, input=[5, 6, 7], encoding_format="base64")
    values = array("f", base64.b64decode(got["data"][0]["embedding"]))
    assert values.tolist() == expected([5, 6, 7])


async def test_dimensions_and_normalisation_reach_the_worker(client: EncodingClient) -> None:
    got = await client.ask(EMBEDDINGS, input=[5, 6, 7], dimensions=2, normalize=False)
    assert got["data"][0]["embedding"] == expected([5, 6, 7], 2)
    (message,) = client.pool.prefill[0].encodes()
    assert (message.output.kind, message.output.dimensions) == (EncodingKind.EMBEDDING, 2)
    assert message.output.is_normalised is False


async def test_2048_inputs_are_embedded_in_order_and_one_more_is_refused(client: EncodingClient) -> None:
    inputs = [[3 + number % 90, 4 + number // 90] for number in range(2_048)]
    got = await client.ask(EMBEDDINGS, input=inputs)
    wrong = [ids for ids, entry in zip(inputs, got["data"], strict=True) if entry["embedding"] != expected(ids)]
    assert wrong[:3] == []
    assert got["usage"]["prompt_tokens"] == 2 * 2_048
    status, error = await client.refused(EMBEDDINGS, input=[*inputs, [3]])
    assert (status, error["param"], error["code"]) == (400, "input", "too_long")


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "input", "missing_required_parameter"),
        ({"input": ""}, "input", "empty_prompt"),
        ({"input": []}, "input", "empty_prompt"),
        ({"input": ["a", ""]}, "input[1]", "empty_prompt"),
        ({"input": [[5], []]}, "input[1]", "invalid_value"),
        ({"input": 5}, "input", "invalid_type"),
        ({"input": ["a", 5]}, "input[1]", "invalid_type"),
        ({"input": [5, "a"]}, "input[1]", "invalid_type"),
        ({"input": [5, 1 << 20]}, "input", "out_of_range"),
        ({"input": [[5], [1 << 20]]}, "input[1]", "out_of_range"),
        ({"input": ["a", [5] * 3_000]}, "input[1]", "context_length_exceeded"),
        ({"input": "word " * 5_000}, "input", "context_length_exceeded"),
        ({"input": "a", "dimensions": WIDTH + 1}, "dimensions", "out_of_range"),
        ({"input": "a", "dimensions": 0}, "dimensions", "out_of_range"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "invalid_value"),
        ({"input": "a", "prompt_name": "query"}, "prompt_name", "invalid_value"),
        ({"input": [5], "prompt": "Q: "}, "prompt", "invalid_value"),
        ({"input": "a", "prompt": "Q: ", "prompt_name": "q"}, "prompt", "invalid_value"),
        ({"input": "a", "temperature": 1}, "temperature", "unknown_parameter"),
        ({"input": "a", "pooling": "max"}, "pooling", "unknown_parameter"),
        ({"input": "a", "model": "other"}, "model", "model_not_found"),
    ],
)
async def test_bad_embeddings_are_refused_by_field(
    body: dict[str, Any], param: str, code: str, client: EncodingClient
) -> None:
    status, error = await client.refused(EMBEDDINGS, **body)
    assert (error["param"], error["code"]) == (param, code)
    assert status == (404 if code == "model_not_found" else 400)


async def test_an_input_may_fill_the_whole_context(client: EncodingClient) -> None:
    got = await client.ask(EMBEDDINGS, input=[5] * 2_048)
    assert got["usage"]["prompt_tokens"] == 2_048
    got = await client.ask(EMBEDDINGS, input=[5] * 2_049, truncate_prompt_tokens=100)
    assert got["usage"]["prompt_tokens"] == 100


async def test_a_chat_with_a_model_that_only_embeds_is_refused_by_name(client: EncodingClient) -> None:
    for path, body in ((CHAT, {}), ("/v1/completions", {"prompt": "Hello"})):
        status, error = await client.refused(path, **body)
        assert (status, error["param"], error["code"]) == (400, "model", "task_not_served")
        assert "/v1/embeddings" in error["message"]


async def test_a_model_that_only_embeds_is_routable_and_listed(client: EncodingClient) -> None:
    async with client.http.get(client.gateway.url("/health/routable")) as got:
        assert got.status == 200
    async with client.http.get(client.gateway.url("/v1/models")) as got:
        assert [entry["max_model_len"] for entry in (await got.json())["data"]] == [2_048]


async def test_labels_of_a_model_without_a_head_are_refused(client: EncodingClient) -> None:
    status, error = await client.refused("/classify", input="a")
    assert (status, error["code"]) == (400, "task_not_served")


@pytest.mark.parametrize("values", [pack_floats([1.0]), pack_floats([math.nan] * WIDTH), b"\0" * (4 * WIDTH - 1)])
async def test_an_impossible_result_is_computed_again(values: bytes, client: EncodingClient) -> None:
    client.pool.prefill[0].spoils_values = values
    got = await client.ask(EMBEDDINGS, input=[5, 6])
    assert got["data"][0]["embedding"] == expected([5, 6])
    assert len(client.pool.prefill[0].encodes()) == 2


async def test_a_lost_worker_and_a_refusing_one_are_replaced_by_another(client: EncodingClient) -> None:
    first = client.pool.prefill[0]
    second = await client.pool.add(Role.PREFILL, encoding=first.encoding, fail_next=[Reason.NO_CAPACITY])
    await client.gateway.until_linked(2)
    first.hold = True
    asking = asyncio.create_task(client.ask(EMBEDDINGS, input=[[5, number] for number in range(3, 11)]))
    await until(lambda: bool(first.encodes()))
    await first.stop()
    got = await asking
    assert [entry["embedding"] for entry in got["data"]] == [expected([5, number]) for number in range(3, 11)]
    assert second.encodes()


async def test_a_client_that_hangs_up_cancels_its_prompts(client: EncodingClient) -> None:
    worker = client.pool.prefill[0]
    worker.hold = True
    asking = asyncio.create_task(client.ask(EMBEDDINGS, input=[[5], [6]]))
    await until(lambda: bool(worker.encodes()))
    asking.cancel()
    await until(lambda: bool(worker.of_type(Cancel)))


async def test_metrics_count_prompts_and_the_route(client: EncodingClient) -> None:
    await client.ask(EMBEDDINGS, input=[[5, 6], [7]])
    async with client.http.get(client.gateway.url("/metrics")) as got:
        page = await got.text()
    assert 'baton_gateway_routed_total{route="encoded"} 2.0' in page
    assert "baton_gateway_prompt_tokens_total 3.0" in page
    assert "baton_gateway_completion_tokens_total 0.0" in page
    assert "baton_gateway_ttft_seconds_count 1.0" in page


async def test_pairs_of_a_model_that_embeds_are_compared_by_their_vectors(client: EncodingClient) -> None:
    got = await client.ask("/v1/score", text_1="Hello", text_2=["Hello", "Grüße, Welt"])
    assert [entry["index"] for entry in got["data"]] == [0, 1]
    scores = [entry["score"] for entry in got["data"]]
    same, other = sorted(client.prompts(), key=len)[1:]
    pairs = [(expected(same), expected(text)) for text in (same, other)]
    assert scores == [sum(map(mul, left, right)) for left, right in pairs]
    assert all(message.output.is_normalised for message in client.pool.prefill[0].encodes())


class TestReranker:
    """Pairs judged by `yes` and `no`."""

    @pytest.fixture
    def limits(self) -> EncodingLimits:
        return EncodingLimits(WIDTH, generates=False, reranks=True, embeds=False)

    @pytest.fixture
    async def pool(self, tmp_path: Path, limits: EncodingLimits) -> AsyncIterator[FakePool]:
        made = byte_level()
        made.tokenizer.add_tokens(["no", "yes"])
        pool = FakePool(tmp_path, made, answer)
        await pool.add(Role.PREFILL, encoding=limits)
        yield pool
        await pool.stop()

    async def test_documents_are_ranked_best_first(self, client: EncodingClient) -> None:
        documents = ["a", "a much longer document", {"text": "middle one"}]
        got = await client.ask("/rerank", query="what?", documents=documents, top_n=2)
        assert [entry["index"] for entry in got["results"]] == [1, 2]
        assert got["results"][0]["document"] == {"text": "a much longer document"}
        longest = max(map(len, client.prompts()))
        assert got["results"][0]["relevance_score"] == pytest.approx(1 / (1 + math.exp(-longest / 8)))
        assert got["usage"]["total_tokens"] == sum(map(len, client.prompts()))

    async def test_the_question_is_qwens_and_a_client_cannot_end_it(self, client: EncodingClient) -> None:
        await client.ask("/v1/score", text_1="q<|end|>", text_2="d", instruction="Judge!")
        (prompt,) = client.prompts()
        text = client.pool.tokenizer.tokenizer.decode(prompt, skip_special_tokens=False)
        assert "<Instruct>: Judge!\n<Query>: q<|end|>\n<Document>: d" in text
        assert tokenizer().eos_id not in prompt
        (message,) = client.pool.prefill[0].encodes()
        assert message.output.token_ids == tuple(map(client.pool.tokenizer.id_of, ("no", "yes")))

    async def test_cohere_gets_no_documents_unless_it_asks(self, client: EncodingClient) -> None:
        got = await client.ask("/v2/rerank", query="q", documents=["a"])
        assert list(got["results"][0]) == ["index", "relevance_score"]
        got = await client.ask("/v2/rerank", query="q", documents=["a"], return_documents=True)
        assert got["results"][0]["document"] == {"text": "a"}

    @pytest.mark.parametrize(
        ("path", "body", "param"),
        [
            ("/rerank", {"documents": ["a"]}, "query"),
            ("/rerank", {"query": "", "documents": ["a"]}, "query"),
            ("/rerank", {"query": ["a"], "documents": ["a"]}, "query"),
            ("/rerank", {"query": "q", "documents": []}, "documents"),
            ("/rerank", {"query": "q", "documents": ["a", 5]}, "documents[1]"),
            ("/rerank", {"query": "q", "documents": ["a", {"title": "b"}]}, "documents[1]"),
            ("/rerank", {"query": "q", "documents": ["a"] * 2_049}, "documents"),
            ("/rerank", {"query": "q", "documents": ["a"], "top_n": 0}, "top_n"),
            ("/rerank", {"query": "q", "documents": ["a"], "max_chunks_per_doc": 3}, "max_chunks_per_doc"),
            ("/score", {"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, "text_2"),
            ("/score", {"text_1": "a"}, "text_2"),
            ("/score", {"text_1": "a", "text_2": [""]}, "text_2[0]"),
            ("/rerank", {"query": "q", "documents": ["ok", "word " * 5_000]}, "documents[1]"),
        ],
    )
    async def test_bad_pairs_are_refused_by_field(
        self, path: str, body: dict[str, Any], param: str, client: EncodingClient
    ) -> None:
        status, error = await client.refused(path, **body)
        assert (status, error["param"]) == (400, param)

    async def test_embeddings_of_a_reranker_are_refused(self, client: EncodingClient) -> None:
        status, error = await client.refused(EMBEDDINGS, input="a")
        assert (status, error["code"]) == (400, "task_not_served")


class TestClassifier:
    """A model with labels."""

    @pytest.fixture
    def limits(self) -> EncodingLimits:
        return EncodingLimits(WIDTH, labels=3, generates=False, embeds=False)

    async def test_labels_have_probabilities(self, client: EncodingClient) -> None:
        got = await client.ask("/classify", input=["Hello", [5, 6]])
        assert [entry["num_classes"] for entry in got["data"]] == [3, 3]
        assert got["data"][0]["label"] == "LABEL_0"
        assert all(sum(entry["probs"]) == pytest.approx(1) for entry in got["data"])
        weights = [1.0, math.exp(-1), math.exp(-2)]
        assert got["data"][1]["probs"] == pytest.approx([weight / sum(weights) for weight in weights])

    async def test_several_labels_rank_nothing(self, client: EncodingClient) -> None:
        status, error = await client.refused("/rerank", query="q", documents=["a"])
        assert (status, error["code"]) == (400, "task_not_served")
        assert "/classify" in error["message"]


class TestCrossEncoder:
    """A model with one label reads both texts, one after the other."""

    @pytest.fixture
    def limits(self) -> EncodingLimits:
        return EncodingLimits(WIDTH, labels=1, is_probability=False, generates=False, embeds=False)

    async def test_a_score_is_the_label_of_both_texts(self, client: EncodingClient) -> None:
        got = await client.ask("/score", text_1=["Hello", "a"], text_2=["Welt", "b"])
        prompts = client.prompts()
        begin = tokenizer().id_of("<|begin|>")
        assert [begin, *ids_of("Hello"), begin, *ids_of("Welt")] in prompts
        assert sorted(entry["score"] for entry in got["data"]) == sorted(len(prompt) / 8 for prompt in prompts)


class TestChatDeployment:
    """A prefill worker that also embeds, next to a decode worker."""

    @pytest.fixture
    async def pool(self, tmp_path: Path) -> AsyncIterator[FakePool]:
        pool = FakePool(tmp_path, tokenizer(), answer)
        await pool.add(Role.PREFILL, encoding=EMBEDS)
        await pool.add(Role.DECODE)
        yield pool
        await pool.stop()

    async def test_chats_and_embeddings_are_answered_together(self, client: EncodingClient) -> None:
        chats = [client.ask(CHAT, max_tokens=3) for _ in range(4)]
        vectors = [client.ask(EMBEDDINGS, input=[[5, number] for number in range(3, 9)]) for _ in range(4)]
        got = await asyncio.gather(*chats, *vectors)
        assert all(answer["usage"]["completion_tokens"] == 3 for answer in got[:4])
        assert all(len(answer["data"]) == 6 for answer in got[4:])
        assert not client.pool.decode[0].encodes()


class TestChatWithoutEncoding:
    """Workers that encode nothing."""

    @pytest.fixture
    async def pool(self, tmp_path: Path) -> AsyncIterator[FakePool]:
        pool = FakePool(tmp_path, tokenizer(), answer)
        await pool.add(Role.PREFILL)
        await pool.add(Role.DECODE)
        yield pool
        await pool.stop()

    async def test_embeddings_are_refused_by_name(self, client: EncodingClient) -> None:
        status, error = await client.refused(EMBEDDINGS, input="a")
        assert (status, error["param"], error["code"]) == (400, "model", "task_not_served")


async def test_a_quota_and_its_queue_hold_for_embeddings(pool: FakePool, http: aiohttp.ClientSession) -> None:
    async with running_gateway(pool, "--max-running=1", "--max-queued=0") as gateway:
        client = EncodingClient(gateway, http)
        pool.prefill[0].hold = True
        asking = asyncio.create_task(client.ask(EMBEDDINGS, input=[5]))
        await until(lambda: bool(pool.prefill[0].encodes()))
        status, error = await client.refused(EMBEDDINGS, input=[6])
        assert (status, error["code"]) == (429, "queue_full")
        asking.cancel()


class ShortTexts(MadeTokenizer):
    """A tokenizer in a folder whose texts sentence-transformers reads to their sixth token."""

    def files(self) -> dict[str, str | None]:
        return {**super().files(), "modules.json": "[]", "sentence_bert_config.json": '{"max_seq_length": 6}'}


class TestAModelThatReadsTheBeginningOfATextOnly:
    @pytest.fixture
    async def pool(self, tmp_path: Path, limits: EncodingLimits) -> AsyncIterator[FakePool]:
        made = tokenizer()
        pool = FakePool(tmp_path, ShortTexts(made.tokenizer, made.config), answer)
        await pool.add(Role.PREFILL, encoding=limits)
        yield pool
        await pool.stop()

    async def test_its_vector_is_that_of_the_beginning_and_usage_counts_what_was_read(
        self, client: EncodingClient
    ) -> None:
        got = await client.ask(EMBEDDINGS, input=[FOX, "Hi"])
        long, short = sorted(client.prompts(), key=len, reverse=True)
        assert long[1:] == ids_of(FOX)[:5], "the tokenizer's own beginning counts"
        assert short[1:] == ids_of("Hi")
        assert got["usage"]["prompt_tokens"] == len(long) + len(short) == 6 + len(short)

    async def test_the_client_may_ask_for_the_end_instead(self, client: EncodingClient) -> None:
        await client.ask(EMBEDDINGS, input=FOX, truncate_prompt_tokens=9)
        assert client.prompts() == [ids_of(FOX)[-9:]]
