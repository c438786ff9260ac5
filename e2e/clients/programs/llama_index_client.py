"""LlamaIndex's openai-like model: complete, chat, streamed chat."""

import json
import sys

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

model = OpenAILike(
    model="tiny", api_base=f"{sys.argv[1]}/v1", api_key="unused", is_chat_model=True, temperature=0, max_retries=0
)
messages = [ChatMessage(role="user", content=sys.argv[2])]
whole = model.chat(messages).message.content
pieces = [chunk.delta or "" for chunk in model.stream_chat(messages)]
print(json.dumps({"whole": whole, "streamed": "".join(pieces), "complete": model.complete(sys.argv[2]).text}))
