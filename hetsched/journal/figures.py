"""Metrics that processes count into rows; `/metrics` shows them together with the metrics it reads from the fleet.

Units: seconds. Labels are clusters, verdicts, plugins, codes and similar: never nodes, pods or users.
"""

from __future__ import annotations

from .counters import Metric

_CALL_SECONDS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_DECISION_SECONDS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)

DECISIONS = Metric(
    "hetsched_decisions", "Pods decided, by verdict; one that is looked at again counts again.", ("cluster", "verdict")
)
REASONS = Metric("hetsched_reasons", "Reasons given with decisions that placed nothing.", ("cluster", "plugin", "code"))
DECISION_SECONDS = Metric("hetsched_decision_seconds", "Time to decide one pod.", ("cluster",), _DECISION_SECONDS)
BATCHES = Metric(
    "hetsched_batches",
    "Batches of decisions: recorded, lost (another writer or leader committed first), refused (by constraints).",
    ("cluster", "outcome"),
)
BINDING_SECONDS = Metric(
    "hetsched_binding_seconds",
    "Time until the fate of a binding was known, by that fate.",
    ("cluster", "outcome"),
    _CALL_SECONDS,
)
API_REQUESTS = Metric(
    "hetsched_api_requests", "Calls to API servers; code 0: no answer came.", ("cluster", "verb", "code")
)
CANARY = Metric("hetsched_canary", "Canary tasks done.", ("queue",))
FLUSHED = Metric(
    "hetsched_flushed_then_scheduled",
    "Pods placed although nothing that they waited for was seen to happen: events that were missed.",
    ("cluster",),
)
SHADOWS = Metric(
    "hetsched_shadow_pods", "Pods that another scheduler bound, by how its choice compares.", ("cluster", "judgement")
)
KUBELET_REFUSALS = Metric(
    "hetsched_kubelet_refusals", "Pods of ours that a kubelet did not run, by its reason.", ("cluster", "reason")
)
DELIVERIES = Metric(
    "hetsched_deliveries", "Attempts to tell others of workloads: delivered, failed (tried again), dead.", ("outcome",)
)
TICKS = Metric("hetsched_ticks", "Slots of periodic work that were taken, by what was done.", ("work",))
EVENTS_GIVEN_UP = Metric(
    "hetsched_outbox_given_up", "Live events that the message store refused for so long that they are not sent."
)
STALE_EPOCHS = Metric(
    "hetsched_stale_epoch_rejected", "Writes of processes that did not lead or follow any more, refused.", ("cluster",)
)
READ_BACKS = Metric(
    "hetsched_bind_readback", "Bindings whose fate was found out by reading the pod.", ("cluster", "outcome")
)
VIOLATIONS = Metric("hetsched_invariant_violations", "Invariants broken at the latest check, by number.", ("id",))
GOLDENS = Metric(
    "hetsched_golden_placements",
    "Golden placements at the latest look, by how they stand under the policies that are active.",
    ("state",),
)

COUNTERS = (
    DECISIONS, REASONS, BATCHES, API_REQUESTS, FLUSHED, SHADOWS, KUBELET_REFUSALS, DELIVERIES, EVENTS_GIVEN_UP,
    STALE_EPOCHS, READ_BACKS, TICKS,
)  # fmt: skip
HISTOGRAMS = (DECISION_SECONDS, BINDING_SECONDS)
