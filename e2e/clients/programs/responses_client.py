"""OpenAI's own client at the Responses API: whole, streamed, with the answer put back into the input."""

import json
import sys
from typing import Any

import openai

client = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="unused", max_retries=0)
whole = client.responses.create(model="tiny", input=sys.argv[2], temperature=0)
with client.responses.stream(model="tiny", input=sys.argv[2], temperature=0) as stream:
    pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
    ended = stream.get_final_response().status
items: Any = [{"role": "user", "content": sys.argv[2]}, *whole.output, {"role": "user", "content": "And then?"}]
again = client.responses.create(model="tiny", input=items, max_output_tokens=4)
outcome = {"whole": whole.output_text, "streamed": "".join(pieces), "ended": ended}
print(json.dumps(outcome | {"again": again.incomplete_details is not None}))
