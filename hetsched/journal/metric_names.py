"""Metrics that processes store in rows; `/metrics` returns them together with the metrics computed from the fleet.

Durations are in seconds. Labels are clusters, verdicts, plugins, codes and similar values, never nodes, pods or users.
"""

from __future__ import annotations

from .counters import Metric

_CALL_SECONDS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_DECISION_SECONDS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)

DECISIONS = Metric(
    "hetsched_decisions", "Scheduling decisions by verdict; every attempt is counted.", ("cluster", "verdict")
)
REASONS = Metric("hetsched_reasons", "Reasons of decisions without a placement.", ("cluster", "plugin", "code"))
DECISION_SECONDS = Metric("hetsched_decision_seconds", "Time to decide one pod.", ("cluster",), _DECISION_SECONDS)
BATCHES = Metric(
    "hetsched_batches",
    "Batches of decisions: recorded, lost (another writer or leader committed first), refused (by constraints).",
    ("cluster", "outcome"),
)
BINDING_SECONDS = Metric(
    "hetsched_binding_seconds",
    "Time until the result of a binding was known, by result.",
    ("cluster", "outcome"),
    _CALL_SECONDS,
)
API_REQUESTS = Metric(
    "hetsched_api_requests", "Calls to API servers by status code; code 0: no response.", ("cluster", "verb", "code")
)
CANARY = Metric("hetsched_canary", "Completed canary tasks.", ("queue",))
FLUSHED = Metric(
    "hetsched_flushed_then_scheduled",
    "Pods placed only after the periodic flush of unschedulable pods, which indicates missed events.",
    ("cluster",),
)
SHADOWS = Metric(
    "hetsched_shadow_pods",
    "Pods that another scheduler bound in shadow mode, by comparison with the decision of hetsched.",
    ("cluster", "judgement"),
)
KUBELET_REFUSALS = Metric(
    "hetsched_kubelet_refusals", "Pods that a kubelet rejected after binding, by its reason.", ("cluster", "reason")
)
DELIVERIES = Metric(
    "hetsched_deliveries",
    "Webhook delivery attempts: delivered, failed (retried), dead (no more retries).",
    ("outcome",),
)
STANDBY = Metric("hetsched_standby_reports", "Reports of warm standby informers, every 5 s.", ("cluster",))
TICKS = Metric("hetsched_ticks", "Acquired slots of periodic tasks, by task.", ("work",))
EVENTS_GIVEN_UP = Metric(
    "hetsched_outbox_given_up", "Live events that were discarded because the message store rejected them for too long."
)
STALE_EPOCHS = Metric(
    "hetsched_stale_epoch_rejected", "Rejected writes of processes that had lost their lease.", ("cluster",)
)
READ_BACKS = Metric(
    "hetsched_bind_readback", "Bindings whose result was determined by reading the pod.", ("cluster", "outcome")
)
VIOLATIONS = Metric("hetsched_invariant_violations", "Violations at the latest invariant check, by invariant.", ("id",))
GOLDENS = Metric(
    "hetsched_golden_placements",
    "Golden placements at the latest check, by state under the active policies.",
    ("state",),
)

COUNTERS = (
    DECISIONS, REASONS, BATCHES, API_REQUESTS, FLUSHED, SHADOWS, KUBELET_REFUSALS, DELIVERIES, EVENTS_GIVEN_UP,
    STALE_EPOCHS, READ_BACKS, STANDBY, TICKS,
)  # fmt: skip
HISTOGRAMS = (DECISION_SECONDS, BINDING_SECONDS)
