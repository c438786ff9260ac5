"""Descriptions of the commands, each with an example."""

from __future__ import annotations

from collections.abc import Mapping

ALIASES: Mapping[str, str] = {"quantize": "quantise"}
"""Other spellings of commands."""

TEXTS: Mapping[str, tuple[str, str]] = {
    "up": (
        "Serves a model with separate prefill and decode workers behind an OpenAI-compatible gateway, until Ctrl-C. "
        "What can be refused is refused before a process starts.",
        "baton up hf://Qwen/Qwen3-0.6B --decode 2 --port 8000",
    ),
    "demo": (
        "Starts a deployment, asks it one question, shows what moved between its workers, and stops it.",
        "baton demo -f examples/tiny.yaml",
    ),
    "status": (
        "Shows the processes, why each pool has its size, the KV lanes, and latencies of the last minute and since the "
        "start.",
        "baton status --watch",
    ),
    "ask": (
        "Sends one question to the running deployment and prints the answer as it comes.",
        'baton ask "How does the hand-over work?" --max-tokens 200',
    ),
    "chat": (
        "A conversation in the terminal: the history is sent along, answers are streamed, and each ends with its "
        "speed. /help lists what can be typed.",
        'baton chat --system "Answer in one sentence."',
    ),
    "logs": (
        "Prints the logs of a deployment's processes: of the one that runs, else of the last one that did.",
        "baton logs --follow",
    ),
    "down": (
        "Stops a running deployment as Ctrl-C in its own terminal would, and waits until it has stopped.",
        "baton down",
    ),
    "validate": (
        "Checks LLMDeployments and LLMPools with the parser of the operator, all faults at once, without a cluster. "
        "Exit status 1: a manifest is refused.",
        "baton validate deploy/*.yaml --pod-policy values.yaml",
    ),
    "batch": (
        "Answers a file of requests with one engine in this process, for throughput alone. The same command resumes.",
        "baton batch --model /data/qwen3-0.6b requests.jsonl answers.jsonl",
    ),
    "simulate": (
        "Replays a load in the simulator under one or several scaling policies, and reports attainment and cost.",
        "baton simulate --trace azure.csv --policy slo,hpa-queue,3+2",
    ),
    "plan": (
        "Estimates what a model can do on an accelerator, from its sizes alone.",
        "baton plan /data/llama-3.1-8b --accelerator h200,h100 --tpot 25ms",
    ),
    "quantise": (
        "Writes a copy of a model with 8-bit or 4-bit weights, rounded to the nearest. `baton quality` measures "
        "the loss.",
        "baton quantise /data/qwen3-0.6b /data/qwen3-0.6b-int8 --format int8",
    ),
    "compile": (
        "Compiles the kernels of a model's workers ahead of time, on a machine with or without that accelerator.",
        "baton compile /data/llama-3.1-8b --accelerator h200 --to kernels",
    ),
    "bench": (
        "Sends a load to the running deployment, or to any OpenAI-compatible server, and reports its latencies.",
        "baton bench --rate 4 --duration 60s --ttft 500ms --tpot 25ms",
    ),
    "quality": (
        "Compares a model's answers with those of a reference model on a text, and says in a sentence what was lost.",
        "baton quality /data/qwen3-0.6b-int8 --against /data/qwen3-0.6b --text book.txt",
    ),
    "version": ("Prints the installed version, and the version of the messages between processes.", "baton version"),
    "completion": ("Prints the completion script of a shell.", 'eval "$(baton completion bash)"'),
}
"""Each command's description and example."""
