"""OpenAI's own client: base64 by default, floats, fewer dimensions, token ids."""

import json
import sys

import openai

client = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="unused", max_retries=0)
texts = json.loads(sys.argv[2])
packed = client.embeddings.create(model="tiny", input=texts)
plain = client.embeddings.create(model="tiny", input=texts[0], encoding_format="float")
short = client.embeddings.create(model="tiny", input=texts[0], dimensions=8)
ids = client.embeddings.create(model="tiny", input=json.loads(sys.argv[3]))
outcome = {"vectors": [entry.embedding for entry in packed.data], "query": plain.data[0].embedding}
outcome |= {"short": short.data[0].embedding, "ids": [entry.embedding for entry in ids.data]}
print(json.dumps(outcome | {"tokens": packed.usage.prompt_tokens}))
