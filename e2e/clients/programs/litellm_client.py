"""litellm, with its two ways of naming a server of this kind."""

import json
import sys

import litellm

messages = [{"role": "user", "content": sys.argv[2]}]
server = {"api_base": f"{sys.argv[1]}/v1", "api_key": "unused", "temperature": 0}
whole = litellm.completion(model="openai/tiny", messages=messages, **server)
stream = litellm.completion(model="hosted_vllm/tiny", messages=messages, stream=True, **server)
pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
text = litellm.text_completion(model="text-completion-openai/tiny", prompt=sys.argv[2], max_tokens=4, **server)
texts = {"whole": whole.choices[0].message.content, "streamed": "".join(pieces)}
print(json.dumps(texts | {"text": text.choices[0].text}))
