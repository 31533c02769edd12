"""What the extender counts about itself, for Prometheus.

Rule: one histogram by verb and outcome: *ok*, *refused* (the scheduler was told why not) and *wrong* (what came was no
request of a scheduler). Its counts are calls and errors, its sums their time. No names of nodes, pods or people.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

REGISTRY = CollectorRegistry()
CALLS = Histogram(
    "hetsched_extender_seconds",
    "Time to answer kube-scheduler, by verb and outcome.",
    ["verb", "outcome"],
    registry=REGISTRY,
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
)
TURNED_AWAY = Counter(
    "hetsched_extender_turned_away",
    "Connections without a certificate that counts, and callers that are not on the list.",
    registry=REGISTRY,
)
