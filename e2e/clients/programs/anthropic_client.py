"""Anthropic's own client: whole, streamed, counted."""

import json
import sys
from typing import Any

import anthropic

client = anthropic.Anthropic(base_url=sys.argv[1], api_key="unused", max_retries=0)
messages: Any = [{"role": "user", "content": sys.argv[2]}]
asked: Any = {"model": "tiny", "max_tokens": 400, "messages": messages, "extra_body": {"temperature": 0}}
whole = client.messages.create(**asked)
with client.messages.stream(**asked) as stream:
    pieces = list(stream.text_stream)
    ended = stream.get_final_message().stop_reason
counted = client.messages.count_tokens(model="tiny", messages=messages).input_tokens
[block] = whole.content
prompt_tokens = whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
texts = {"whole": block.text if block.type == "text" else None, "streamed": "".join(pieces)}
print(json.dumps(texts | {"ended": ended == whole.stop_reason, "counted": counted == prompt_tokens}))
