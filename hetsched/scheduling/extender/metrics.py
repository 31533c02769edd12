"""Prometheus metrics of the extender.

One histogram of call durations by verb and outcome: *ok*, *refused* (rejected with a reason) and *wrong* (not a valid
scheduler request). Its counts are the numbers of calls and errors. Labels contain no names of nodes, pods or people.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

REGISTRY = CollectorRegistry()
CALLS = Histogram(
    "hetsched_extender_seconds",
    "Response time for kube-scheduler, by verb and outcome.",
    ["verb", "outcome"],
    registry=REGISTRY,
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
)
TURNED_AWAY = Counter(
    "hetsched_extender_turned_away",
    "Rejected connections: no valid certificate, or client not allowed.",
    registry=REGISTRY,
)
