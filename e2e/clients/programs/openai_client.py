"""OpenAI's own client: whole, streamed, with what it was given put back into the chat."""

import json
import sys
from typing import Any

import openai

client = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="unused", max_retries=0)
messages: Any = [{"role": "user", "content": sys.argv[2]}]
whole = client.chat.completions.create(model="tiny", messages=messages, temperature=0)
stream = client.chat.completions.create(model="tiny", messages=messages, temperature=0, stream=True)
pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
messages += [whole.choices[0].message.model_dump(), {"role": "user", "content": "And then?"}]
again = client.chat.completions.create(model="tiny", messages=messages, max_tokens=4)
models = [model.id for model in client.models.list()]
outcome = {"whole": whole.choices[0].message.content, "streamed": "".join(pieces), "models": models}
print(json.dumps(outcome | {"again": again.choices[0].finish_reason}))
