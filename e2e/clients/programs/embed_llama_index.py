"""LlamaIndex: a batch of texts, and a query."""

import json
import sys

from llama_index.embeddings.openai_like import OpenAILikeEmbedding

texts = json.loads(sys.argv[2])
model = OpenAILikeEmbedding(model_name="tiny", api_base=f"{sys.argv[1]}/v1", api_key="unused", max_retries=0)
print(json.dumps({"vectors": model.get_text_embedding_batch(texts), "query": model.get_query_embedding(texts[0])}))
