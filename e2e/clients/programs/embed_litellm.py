"""litellm: embeddings by two names of such a server, and reranking as vLLM, Jina and Cohere have it."""

import json
import sys

import litellm

texts = json.loads(sys.argv[2])
server = {"api_base": f"{sys.argv[1]}/v1", "api_key": "unused"}
packed = litellm.embedding(model="openai/tiny", input=texts, **server)
plain = litellm.embedding(model="hosted_vllm/tiny", input=texts[:1], encoding_format="float", **server)
outcome = {"vectors": [entry["embedding"] for entry in packed.data], "query": plain.data[0]["embedding"]}
for name, path in (("hosted_vllm", ""), ("jina_ai", "/v1/rerank"), ("cohere", "/v2/rerank")):
    ranked = litellm.rerank(
        model=f"{name}/tiny", query=texts[0], documents=texts, api_base=f"{sys.argv[1]}{path}", api_key="unused"
    )
    outcome[name] = {entry["index"]: entry["relevance_score"] for entry in ranked.results}
print(json.dumps(outcome))
