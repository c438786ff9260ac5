"""Descriptions of the commands, each with an example."""

from __future__ import annotations

from collections.abc import Mapping

ALIASES: Mapping[str, str] = {"quantize": "quantise"}
"""Other spellings of commands."""

TEXTS: Mapping[str, tuple[str, str]] = {
    "up": (
        "Serves a model with separate prefill and decode workers behind an OpenAI-compatible gateway, until Ctrl-C. "
        "Errors in the model or the manifest are reported before a process starts.",
        "baton up hf://Qwen/Qwen3-0.6B --decode 2 --port 8000",
    ),
    "demo": (
        "Starts a deployment, asks it one question, shows what moved between its workers, and stops it.",
        "baton demo -f examples/tiny.yaml",
    ),
    "status": (
        "Shows the processes, why each pool has its size, the lanes that carry KV, and latencies of the last minute "
        "and since the start.",
        "baton status --watch",
    ),
    "top": (
        "Shows live which pool limits the deployment, the share of requests of the last minute within each target, "
        "why each pool has its size, the queue, the cached share, tenants by share, workers and KV links.",
        "baton top --once --format json",
    ),
    "explain": (
        "Shows where a request lost its time, the largest part first, or lists the slowest requests. Records have no "
        "prompts and no answers. Exit status 1 means that no record was found.",
        "baton explain --slowest 5",
    ),
    "usage": (
        "Adds up the ledger: requests, input, cached and output tokens. Reads folders and files of lines, compressed "
        "ones too, or standard input, and counts each request once. Days are UTC, of when a request's work began.",
        "baton usage --since 2026-11 --until 2026-12 --by tenant,model --format csv",
    ),
    "history": (
        "Shows what changed in a deployment: sizes of pools with their reasons, limits met, restarts, spec "
        "and versions. The history outlives the run.",
        "baton history --since 24h",
    ),
    "ask": (
        "Sends one question to the running deployment and streams the answer.",
        'baton ask "How does the hand-over work?" --max-tokens 200',
    ),
    "chat": (
        "Holds a conversation in the terminal. Each request includes the history; answers are streamed and followed by "
        "their speed. /help lists the commands of the conversation.",
        'baton chat --system "Answer in one sentence."',
    ),
    "logs": (
        "Prints the logs of the processes of the running deployment, or else of the last one that ran.",
        "baton logs --follow",
    ),
    "down": (
        "Stops a running deployment as Ctrl-C in its own terminal would, and waits until it has stopped.",
        "baton down",
    ),
    "doctor": (
        "Checks this machine (versions, GPUs, RDMA, limits, names, clock, folders, ports), or with --cluster the "
        "cluster of the kubeconfig (definitions, operator, rights, GPUs, storage), and says what mends each finding. "
        "Exit status 1 means that a check failed; warnings do not count.",
        "baton doctor --cluster --namespace team-a",
    ),
    "validate": (
        "Checks LLMDeployments and LLMTenants with the operator's parser, without a cluster, and reports all errors at "
        "once. Exit status 1 means that a manifest is refused.",
        "baton validate deploy/*.yaml --pod-policy values.yaml",
    ),
    "key": (
        "Makes a random API key for a tenant and prints it once, with its digest and the line for the LLMTenant. "
        "Nothing keeps the key.",
        "baton key --expires 2027-06-30T00:00:00Z",
    ),
    "batch": (
        "Answers a file of requests with one engine in this process, for throughput. The same command resumes a run.",
        "baton batch --model /data/qwen3-0.6b requests.jsonl answers.jsonl",
    ),
    "simulate": (
        "Replays a load in the simulator under one or several scaling policies, and reports the share of requests "
        "within the targets and the cost.",
        "baton simulate --trace azure.csv --policy slo,hpa-queue,3+2",
    ),
    "plan": (
        "Estimates what a model can do on an accelerator, from the model's sizes alone.",
        "baton plan /data/llama-3.1-8b --accelerator h200,h100 --tpot 25ms",
    ),
    "quantise": (
        "Writes a copy of a model with 8-bit or 4-bit weights, rounded to the nearest. `baton quality` measures "
        "the loss.",
        "baton quantise /data/qwen3-0.6b /data/qwen3-0.6b-int8 --format int8",
    ),
    "compile": (
        "Compiles the kernels of a model's workers ahead of time, on a machine with or without the accelerator.",
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
