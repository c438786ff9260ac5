"""langchain-openai: invoke, stream, batch."""

import json
import sys

from langchain_openai import ChatOpenAI

chat = ChatOpenAI(model="tiny", base_url=f"{sys.argv[1]}/v1", api_key="unused", temperature=0, max_retries=0)
whole = chat.invoke(sys.argv[2])
pieces = [str(chunk.content) for chunk in chat.stream(sys.argv[2])]
batch = [answer.content for answer in chat.batch([sys.argv[2], "Hello"])]
print(json.dumps({"whole": whole.content, "streamed": "".join(pieces), "batch": batch}))
