"""An hour with a model, as cells for a notebook (Jupyter and VS Code read `# %%`) or as a script.

    pip install openai matplotlib
    baton up hf://Qwen/Qwen3-0.6B        # in a terminal; any model will do
    python examples/notebook.py

It streams an answer, gets JSON that a schema guarantees, looks at log probabilities, asks many things at once, and
draws what came.
"""

# %% A client: the same library as for OpenAI's API
import json
import math
import os
import time
from concurrent.futures import ThreadPoolExecutor

import openai

URL = os.environ.get("BATON_URL", "http://127.0.0.1:8000/v1")
KEY = os.environ.get("BATON_API_KEY", "none")
client = openai.OpenAI(base_url=URL, api_key=KEY)
model = client.models.list().data[0].id
print("model:", model)

# %% One answer, streamed
stream = client.chat.completions.create(
    model=model, messages=[{"role": "user", "content": "Tell me a fable."}], max_tokens=80, stream=True
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()

# %% JSON that follows a schema: the grammar is enforced token by token
SCHEMA = {
    "type": "object",
    "properties": {
        "animal": {"type": "string", "maxLength": 12},
        "legs": {"type": "integer", "minimum": 0, "maximum": 8},
    },
    "required": ["animal", "legs"],
    "additionalProperties": False,
}
answer = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Name an animal and its number of legs."}],
    max_tokens=200,
    response_format={"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA, "strict": True}},
)
text = answer.choices[0].message.content or ""
if answer.choices[0].finish_reason == "stop":  # at "length" the JSON is cut
    print("parsed:", json.loads(text))
else:
    print("cut at max_tokens:", repr(text))

# %% How sure is it? Log probabilities of an answer's tokens
scored = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Hello!"}],
    max_tokens=16,
    temperature=0,
    logprobs=True,
    top_logprobs=3,
)
assert scored.choices[0].logprobs is not None
tokens = scored.choices[0].logprobs.content or []
for entry in tokens:
    others = ", ".join(f"{other.token!r} {math.exp(other.logprob):.0%}" for other in entry.top_logprobs)
    print(f"{entry.token!r:>14} {math.exp(entry.logprob):6.1%}   of {others}")

# %% Many at once: the gateway shares its workers among all requests
PROMPTS = [f"Give me fact number {number} about foxes." for number in range(24)]


def ask(prompt: str) -> tuple[float, int]:
    """Seconds and tokens of an answer."""
    began = time.monotonic()
    reply = client.chat.completions.create(model=model, messages=[{"role": "user", "content": prompt}], max_tokens=40)
    return time.monotonic() - began, reply.usage.completion_tokens if reply.usage else 0


began = time.monotonic()
with ThreadPoolExecutor(len(PROMPTS)) as threads:  # a notebook has an event loop of its own
    results = list(threads.map(ask, PROMPTS))
elapsed = time.monotonic() - began
print(f"{len(results)} answers in {elapsed:.1f} s, {sum(count for _, count in results) / elapsed:.0f} tokens/s")

# %% The same as a file for `baton batch`, which needs no server and has no latency targets
with open("requests.jsonl", "w", encoding="utf-8") as file:
    for number, prompt in enumerate(PROMPTS):
        body = {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": 40}
        line = {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body}
        file.write(json.dumps(line) + "\n")
print("next: baton batch --model MODEL requests.jsonl answers.jsonl")

# %% A plot
try:
    import matplotlib.pyplot as plt
except ImportError:
    print("no plot: pip install matplotlib")
else:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5))
    left.bar(range(len(tokens)), [math.exp(entry.logprob) for entry in tokens])
    left.set(xlabel="token of the answer", ylabel="probability", title="how sure")
    right.hist([seconds for seconds, _ in results], bins=12)
    right.set(xlabel="seconds", ylabel="answers", title=f"{len(results)} at once")
    figure.tight_layout()
    figure.savefig("notebook.png")
    print("plot: notebook.png")
