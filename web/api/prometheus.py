"""`/metrics`: figures for Prometheus, without names of nodes, pods or people.

Rule: what concerns the fleet is read from the database at each scrape, so any web process gives the same figures; what
concerns this process (requests, sockets) is counted here. Labels are clusters, states and routes only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db.models import Count, Max, Min
from django.http import HttpResponse
from django.urls import path
from django.utils import timezone
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from hetsched.inventory.models import Cluster
from hetsched.journal.models import OutboxEvent
from hetsched.placement.lifecycle import LIVE, State
from hetsched.placement.models import Decision, Pod
from hetsched.placement.queue import due

from .problems import read_only

REGISTRY = CollectorRegistry()
REQUESTS = Histogram(
    "hetsched_request_seconds",
    "Time to answer a REST request, by route.",
    ["method", "route", "status"],
    registry=REGISTRY,
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
SOCKETS = Gauge("hetsched_sockets", "Live sockets open in this process.", registry=REGISTRY)
GAPS = Counter("hetsched_live_gaps", "Live events that the broker lost and a look found.", registry=REGISTRY)
DROPPED = Counter("hetsched_live_dropped", "Live events not sent because a reader was too slow.", registry=REGISTRY)
_COUNTED = sorted(state.value for state in (*LIVE, State.MISCONFIGURED))


class Fleet:
    """Reads the fleet's figures when they are asked for."""

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield from self._clusters()
        yield from self._pods()
        decisions = CounterMetricFamily("hetsched_decisions", "Decisions written since the database was made.")
        decisions.add_metric([], Decision.objects.aggregate(last=Max("id"))["last"] or 0)
        yield decisions
        unsent = OutboxEvent.objects.filter(published_at=None).aggregate(n=Count("id"), at=Min("created_at"))
        yield GaugeMetricFamily("hetsched_outbox_unsent", "Live events that are not sent yet.", value=unsent["n"])
        yield GaugeMetricFamily(
            "hetsched_outbox_oldest_seconds", "Age of the oldest live event that is not sent.", value=_age(unsent["at"])
        )

    def _clusters(self) -> Iterator[Metric]:
        nodes = GaugeMetricFamily("hetsched_nodes", "Nodes.", labels=["cluster", "ready"])
        cards = GaugeMetricFamily("hetsched_cards", "GPU cards.", labels=["cluster"])
        used = GaugeMetricFamily("hetsched_cards_used", "GPU cards given out, in cards.", labels=["cluster"])
        ratio = GaugeMetricFamily(
            "hetsched_requested_ratio", "Requested of allocatable, 0-1.", labels=["cluster", "resource"]
        )
        for cluster in Cluster.objects.defer("definitions"):
            nodes.add_metric([cluster.name, "true"], cluster.ready_count)
            nodes.add_metric([cluster.name, "false"], cluster.node_count - cluster.ready_count)
            cards.add_metric([cluster.name], cluster.card_count)
            used.add_metric([cluster.name], cluster.gpu_milli_used / 1000)
            for resource in ("cpu", "memory"):
                if whole := cluster.capacity.get(resource, 0):
                    ratio.add_metric([cluster.name, resource], cluster.requested.get(resource, 0) / whole)
        yield from (nodes, cards, used, ratio)

    def _pods(self) -> Iterator[Metric]:
        pods = GaugeMetricFamily("hetsched_pods", "Pods that wait or hold something.", labels=["cluster", "state"])
        counted = Pod.objects.filter(state__in=_COUNTED).order_by().values_list("cluster__name", "state")
        for cluster, state, count in counted.annotate(n=Count("id")):
            pods.add_metric([cluster, state], count)
        yield pods
        oldest = GaugeMetricFamily(
            "hetsched_due_oldest_seconds", "Age of the oldest pod that is due to be looked at.", labels=["cluster"]
        )
        due_pods = Pod.objects.filter(due()).order_by().values_list("cluster__name")
        for cluster, at in due_pods.annotate(at=Min("created_at")):
            oldest.add_metric([cluster], _age(at))
        yield oldest


def _age(at: Any) -> float:
    return 0.0 if at is None else max((timezone.now() - at).total_seconds(), 0.0)


REGISTRY.register(Fleet())


def scrape(request: Any) -> HttpResponse:
    """Answer a scrape."""
    headers = {"Cache-Control": "no-store"}
    return HttpResponse(generate_latest(REGISTRY), content_type=CONTENT_TYPE_LATEST, headers=headers)


routes = [path("metrics", read_only(scrape))]
