"""The dashboards about what clients and tenants get, and how the pools follow their demand."""

from __future__ import annotations

from dashboard_panels import (
    COUNT,
    DELIVERED,
    DEMAND,
    FOUND,
    MONEY,
    PER_SECOND,
    PROMPT,
    RATIO,
    REQUESTS,
    SECONDS,
    TPOT_MET,
    TTFT_MET,
    WAITING,
    WORKERS,
    Dashboard,
    Panel,
    quantiles,
    total,
)

SERVICE = Dashboard(
    "service",
    "Baton: service",
    (
        TTFT_MET,
        TPOT_MET,
        Panel(
            "Are requests answered?",
            RATIO,
            "Share of requests that finished, without those whose client went away. Failed and refused ones are "
            "missing from it; the statuses say which.",
            (
                (
                    "answered",
                    total("baton_gateway_requests_total", matchers='@,outcome="finished"')
                    + " / "
                    + total("baton_gateway_requests_total", matchers='@,outcome!="cancelled"'),
                ),
            ),
            is_stat=True,
        ),
        Panel(
            "Which deployments are ready?",
            COUNT,
            "1: the operator says Ready. The reason of a 0 is in the panel on problems, and in kubectl get llm.",
            (("{{namespace}}/{{deployment}}", 'baton_deployment_condition{@,type="Ready",status="True"}'),),
            is_stat=True,
        ),
        Panel(
            "How do requests end?",
            REQUESTS,
            "Finished, cancelled by clients, failed (Baton's fault: 5xx), refused (too much load, or a quota: 429).",
            (("{{outcome}}", total("baton_gateway_requests_total", "outcome")),),
        ),
        Panel(
            "Which statuses do clients see?",
            REQUESTS,
            "HTTP responses. docs/api-http.md explains the codes.",
            (("{{status}}", f"{total('baton_gateway_responses_total', 'status')} > 0"),),
        ),
        Panel(
            "How long until the first token?",
            SECONDS,
            "TTFT: from the request's arrival to its first token. baton explain --slowest 5 shows where the time went.",
            quantiles("baton_gateway_ttft_seconds"),
        ),
        Panel(
            "How long between two tokens?",
            SECONDS,
            "TPOT: mean gap of an answer. Its p95 is compared with the target.",
            quantiles("baton_gateway_tpot_seconds"),
        ),
        Panel(
            "How long do requests wait for their turn?",
            SECONDS,
            "From arrival to admission. A long wait with a short TTFT target means too few workers or a full quota.",
            quantiles("baton_gateway_queue_seconds"),
        ),
        WAITING,
        Panel(
            "Why are requests tried again?",
            PER_SECOND,
            "Attempts after the first, by why the one before ended. Clients see a delay, no error. peer_lost: workers "
            "die; no_capacity: they are full; kv_corrupt: the network alters bytes.",
            (("{{reason}}", f"{total('baton_gateway_retries_total', 'reason')} > 0"),),
        ),
        Panel(
            "Is a stream continued or lost?",
            PER_SECOND,
            "Migrations continue a stream on another worker. Stalled clients did not read. Conflicts: a worker "
            "repeated a token differently, which should never happen.",
            (
                ("migrations", total("baton_gateway_migrations_total")),
                ("stalled clients", total("baton_gateway_stalled_clients_total")),
                ("token conflicts", total("baton_gateway_token_conflicts_total")),
            ),
        ),
        Panel(
            "Is the gateway itself slow?",
            SECONDS,
            "Delay of the event loop's timers. It delays every request: more gateways or processes are needed.",
            quantiles("baton_gateway_loop_lag_seconds"),
        ),
        Panel(
            "Which versions run?",
            COUNT,
            "Processes by version. Two versions for longer than a rollout mean that it does not proceed.",
            (("{{version}}", "count by (version) (baton_build_info{@})"),),
        ),
    ),
    ("ttft_target", "tpot_target"),
)

TENANTS = Dashboard(
    "tenants",
    "Baton: tenants and money",
    (
        Panel(
            "Who fills us?",
            PER_SECOND,
            "What the LLMTenants with a limit ask for, each minute, by the measure of the limit; the ten largest. "
            "Tenants without a limit: baton top, and baton explain --tenant NAME.",
            (("{{tenant}} {{measure}}", f"topk(10, 60 * {total('baton_tenant_wanted_total', 'tenant, measure')})"),),
        ),
        Panel(
            "Which tenant is at its limit?",
            RATIO,
            "What is asked for over what is allowed. Above 1 requests of this tenant are refused with 429; others are "
            "not affected.",
            (
                (
                    "{{tenant}} {{measure}}",
                    f"60 * {total('baton_tenant_wanted_total', 'tenant, measure')}"
                    " / sum by (tenant, measure) (baton_tenant_limit{@})",
                ),
            ),
        ),
        Panel(
            "How many requests are refused?",
            RATIO,
            "Share of requests refused with 429 or while overloaded. If no tenant is at its limit, the pools are too "
            "small.",
            (
                (
                    "refused",
                    total("baton_gateway_requests_total", matchers='@,outcome="refused"')
                    + " / "
                    + total("baton_gateway_requests_total"),
                ),
            ),
        ),
        DEMAND,
        Panel(
            "What do the workers cost an hour?",
            MONEY,
            "Running workers times $worker_price, the price of one worker and hour in your currency.",
            (("{{role}}", 'sum by (role) (baton_pool_workers{@,state="running"}) * $worker_price'),),
        ),
        Panel(
            "What do a million delivered tokens cost?",
            MONEY,
            "The cost of all running workers over the tokens delivered. It falls with the load, and rises when pools "
            "are larger than needed.",
            (
                (
                    "per million",
                    f'sum (baton_pool_workers{{@,state="running"}}) * $worker_price / (3600e-6 * {DELIVERED})',
                ),
            ),
        ),
        Panel(
            "What would the tokens earn an hour?",
            MONEY,
            "Tokens of prompts and tokens delivered at your prices for a million: $prompt_price and $token_price.",
            (
                ("prompts", f"3600e-6 * {PROMPT} * $prompt_price"),
                ("delivered", f"3600e-6 * {DELIVERED} * $token_price"),
            ),
        ),
        FOUND,
    ),
    ("worker_price", "prompt_price", "token_price"),
)

SIZING = Dashboard(
    "sizing",
    "Baton: sizing",
    (
        WORKERS,
        Panel(
            "When did it scale?",
            COUNT,
            "Decisions in five minutes. The reason of each is in baton status, or in status.scalingDecisions of "
            "kubectl get llm -o yaml.",
            (
                (
                    "{{role}} {{direction}}",
                    'sum by (role, direction) (increase(baton_sizing_decisions_total{@,direction!="hold"}[5m]))',
                ),
            ),
        ),
        Panel(
            "Is a pool at its maximum?",
            RATIO,
            "Wanted workers over replicas.max. At 1 the pool cannot grow: raise replicas.max, or accept the miss.",
            (
                (
                    "{{role}}",
                    'max by (namespace, deployment, role) (baton_pool_workers{@,state="wanted"})'
                    " / on (namespace, deployment, role) baton_pool_max_workers{@}",
                ),
            ),
        ),
        Panel(
            "Does sizing know the demand?",
            COUNT,
            "1: demand is unknown, and the pools keep their sizes. The gateways' links to the operator are cut, or "
            "there is no gateway.",
            (("{{deployment}}", "max by (namespace, deployment) (baton_sizing_holds{@})"),),
        ),
        TTFT_MET,
        TPOT_MET,
        DEMAND,
        WAITING,
        Panel(
            "What keeps a deployment from its wanted state?",
            COUNT,
            "The worst problem of each deployment; docs/operator.md lists the reasons.",
            (("{{namespace}}/{{deployment}} {{reason}}", "baton_deployment_reason{@} == 1"),),
        ),
        Panel(
            "Does the operator work?",
            PER_SECOND,
            "Passes of the operator by outcome. Done and Held are right; others are failures.",
            (("{{outcome}}", "sum by (outcome) (rate(baton_operator_passes_total[~]))"),),
        ),
        Panel(
            "How long does the operator take?",
            SECONDS,
            "Duration of a pass.",
            quantiles("baton_operator_pass_seconds", matchers=""),
        ),
        Panel(
            "Do deployments wait for the operator?",
            COUNT,
            "Deployments that wait for a pass or have one now, and operators that hold the Lease (should be 1).",
            (
                ("waiting", "sum (baton_operator_queue_keys)"),
                ("active operators", "sum (baton_operator_is_active)"),
            ),
        ),
    ),
    ("ttft_target", "tpot_target"),
)
