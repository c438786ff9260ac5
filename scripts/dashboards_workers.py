"""The dashboards about workers: what limits the pools, and how KV travels between them."""

from __future__ import annotations

from dashboard_panels import (
    BYTES,
    COUNT,
    PER_SECOND,
    RATIO,
    SECONDS,
    TOKENS,
    WAITING,
    WORKERS,
    Dashboard,
    Panel,
    quantiles,
    total,
)

POOLS = Dashboard(
    "pools",
    "Baton: pools",
    (
        Panel(
            "Which pool computes all the time?",
            RATIO,
            "Share of the time in which engines compute. The pool near 1 limits the deployment.",
            (("{{role}}", "avg by (role) (rate(baton_busy_seconds_total{@}[~]))"),),
        ),
        Panel(
            "Which pool has full KV memory?",
            RATIO,
            "Blocks in use or reserved. Near 1 new sequences wait, and older ones preempt younger ones.",
            (
                (
                    "{{role}}",
                    'sum by (role) (baton_kv_blocks{@,state=~"in_use|reserved"}) / sum by (role) (baton_kv_blocks{@})',
                ),
            ),
        ),
        Panel(
            "In which pool do sequences wait?",
            COUNT,
            "Sequences at the workers. Waiting ones grow in the pool that is too small.",
            (("{{role}} {{state}}", "sum by (role, state) (baton_sequences{@})"),),
        ),
        WAITING,
        WORKERS,
        Panel(
            "How long does an engine step take?",
            SECONDS,
            "A decode step bounds the gap between tokens, a prefill step the TTFT.",
            quantiles("baton_step_seconds", "role"),
        ),
        Panel(
            "How large are the batches?",
            COUNT,
            "Mean number of prefill chunks and decode rows in a step.",
            (
                (
                    "{{role}}",
                    f"{total('baton_batch_size_sum', 'role')} / {total('baton_batch_size_count', 'role')}",
                ),
            ),
        ),
        Panel(
            "How many tokens does each pool take in and draw?",
            TOKENS,
            "Prompt tokens accepted and tokens drawn by the workers, also of attempts that were lost.",
            (("{{role}} {{kind}}", total("baton_tokens_total", "role, kind")),),
        ),
        Panel(
            "Does a pool preempt sequences?",
            PER_SECOND,
            "Sequences that gave their blocks to older ones. More than a few: raise kvCacheMemory, or add workers.",
            (("{{role}}", total("baton_preemptions_total", "role")),),
        ),
        Panel(
            "How well are the devices used?",
            RATIO,
            "MFU bounds prefill, MBU bounds decode. Absent on devices whose peak is unknown, such as CPUs.",
            (
                ("{{role}} MFU", "avg by (role) (baton_mfu_ratio{@})"),
                ("{{role}} MBU", "avg by (role) (baton_mbu_ratio{@})"),
            ),
        ),
        Panel(
            "How often is a prefix in a pool's cache?",
            RATIO,
            "Share of prompt tokens whose KV the worker had cached.",
            (
                (
                    "{{role}}",
                    total("baton_prefix_tokens_total", "role", '@,found="hit"')
                    + " / "
                    + total("baton_prefix_tokens_total", "role"),
                ),
            ),
        ),
        Panel(
            "Why do workers give up parts of requests?",
            PER_SECOND,
            "Request legs that ended without their result. cancelled and finished need no action.",
            (
                (
                    "{{role}} {{outcome}}",
                    total("baton_legs_total", "role, outcome", '@,outcome!~"finished|cancelled"') + " > 0",
                ),
            ),
        ),
        Panel(
            "What makes a worker's start slow?",
            SECONDS,
            "The slowest worker of each pool, by stage. It is the time by which scaling up comes late.",
            (("{{role}} {{stage}}", "max by (role, stage) (baton_startup_seconds{@})"),),
        ),
        Panel(
            "Are kernels compiled while workers serve?",
            PER_SECOND,
            "Compiling delays requests. Run baton compile for the accelerator in use.",
            (("{{role}}", total("baton_kernels_total", "role", '@,origin="compiled"')),),
        ),
        Panel(
            "How much memory do processes hold?",
            "bytes",
            "Resident memory of each Pod. A steady growth is a leak.",
            (("{{pod}}", "sum by (pod) (process_resident_memory_bytes{@})"),),
        ),
    ),
)

HANDOVER = Dashboard(
    "handover",
    "Baton: hand-over",
    (
        Panel(
            "How long does a hand-over take?",
            SECONDS,
            "Prefill: from all KV computed until it is verified. Decode: from the grant until it is verified. It is "
            "part of TTFT. Compare with the link's rate.",
            quantiles("baton_handover_seconds", "role"),
        ),
        Panel(
            "Is a link slow?",
            BYTES,
            "Slowest link of each prefill Pod to a decode worker, measured when it opened. One Pod below its peers: "
            "its node's network. baton status shows each lane.",
            (("{{pod}} {{transport}}", "min by (pod, transport) (baton_kv_link_bytes_per_second{@})"),),
        ),
        Panel(
            "How much KV moves?",
            BYTES,
            "Bytes of KV without headers.",
            (("{{role}} {{direction}}", total("baton_kv_bytes_total", "role, direction")),),
        ),
        Panel(
            "How much KV is sent while its prompt is computed?",
            RATIO,
            "Part of the KV that was transferred early, so that it costs no time after the prompt. Short prompts of "
            "one chunk have none.",
            (
                (
                    "early",
                    total("baton_kv_bytes_total", matchers='@,direction="early"')
                    + " / "
                    + total("baton_kv_bytes_total", matchers='@,direction="sent"'),
                ),
            ),
        ),
        Panel(
            "Which way do requests take?",
            PER_SECOND,
            "Disaggregated: with a hand-over. Local: prefilled by the decode worker. Kept: decoded by the prefill "
            "worker. Encoded: embeddings and the like.",
            (("{{route}}", total("baton_gateway_routed_total", "route")),),
        ),
        Panel(
            "Why do parts of requests fail?",
            PER_SECOND,
            "peer_lost: the other worker is gone. kv_corrupt: verification failed. stalled: part of a worker does not "
            "move. unfit_pair: the workers' templates differ.",
            (("{{reason}}", f"{total('baton_gateway_leg_failures_total', 'reason')} > 0"),),
        ),
        Panel(
            "Is KV altered in transit?",
            PER_SECOND,
            "Each altered frame ended its link. Any at all: memory, a NIC or a cable fails.",
            (
                ("{{role}} {{link}}", total("baton_altered_frames_total", "role, link")),
                ("gateway {{link}}", total("baton_gateway_altered_frames_total", "link")),
            ),
        ),
        Panel(
            "Are blocks reserved for KV in transit?",
            COUNT,
            "Blocks of decode workers. Many reserved for long: hand-overs are slow or their prefill workers are full.",
            (("{{state}}", 'sum by (state) (baton_kv_blocks{@,role="decode"})'),),
        ),
        Panel(
            "Are all workers linked?",
            COUNT,
            "Live links of the gateway Pods with the fewest and with the most, over all processes of each. Where they"
            " differ, a gateway lacks workers that another one has.",
            (
                ("{{role}}, fewest", "min by (role) (baton_gateway_links{@})"),
                ("{{role}}, most", "max by (role) (baton_gateway_links{@})"),
            ),
        ),
        Panel(
            "Are sessions moved away from their cache?",
            PER_SECOND,
            "Prompts computed elsewhere than where most of them was cached. docs/metrics.md explains the reasons.",
            (("{{reason}}", total("baton_gateway_moved_sessions_total", "reason")),),
        ),
    ),
)
