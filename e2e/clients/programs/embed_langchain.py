"""langchain-openai: documents and a query, as texts. By default it would send ids of OpenAI's own tokenizer."""

import json
import sys

from langchain_openai import OpenAIEmbeddings

texts = json.loads(sys.argv[2])
model = OpenAIEmbeddings(
    model="tiny", base_url=f"{sys.argv[1]}/v1", api_key="unused", max_retries=0, check_embedding_ctx_length=False
)
print(json.dumps({"vectors": model.embed_documents(texts), "query": model.embed_query(texts[0])}))
