"""Prometheus metrics of the whole fleet, read from the database at each scrape.

Gauges are computed from the rows of clusters, pods, leases and syncs. Counters are read from rows that the counting
processes write (`hetsched.journal.counters`). Every web process therefore returns the same values, and no value is lost
at a restart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime

from django.db.models import Count, Min, Q
from django.utils import timezone
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from hetsched.inventory.agent_messages import count_agents
from hetsched.inventory.models import Cluster, ClusterKind, Collector, Connection, Sync
from hetsched.inventory.models.node_facts import NodeFacts
from hetsched.inventory.node_events import is_synced
from hetsched.journal import counters, metric_names
from hetsched.journal.models import AuditSeal, OutboxEvent
from hetsched.placement.lifecycle import HOLDING, LISTED
from hetsched.placement.models import Pod, Reservation
from hetsched.placement.queries.placement_effects import oldest_without_effects
from hetsched.placement.scheduling_queue.active_queue import IN_SHADOW


class Fleet:
    """Prometheus client-library collector for the metrics of the whole fleet."""

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        clusters = list(Cluster.objects.defer("definitions"))
        yield from _capacity(clusters)
        yield from _pods(clusters)
        yield from _reservations()
        yield from _effects(clusters)
        yield from _leases(clusters)
        yield from _watches(clusters)
        yield from _tokens()
        yield from _agents(clusters)
        yield from _collectors()
        yield from _outbox()
        yield from _counter_metrics()


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=labels)


def _capacity(clusters: Sequence[Cluster]) -> Iterator[Metric]:
    nodes = _gauge("hetsched_nodes", "Nodes.", "cluster", "ready")
    cards = _gauge("hetsched_cards", "GPU cards that accept new pods.", "cluster")
    installed = _gauge(
        "hetsched_cards_installed", "GPU cards, including cards that are unhealthy or in maintenance.", "cluster"
    )
    used = _gauge("hetsched_cards_used", "Allocated GPU capacity, in GPUs.", "cluster")
    ratio = _gauge("hetsched_requested_ratio", "Requested / allocatable resources, 0-1.", "cluster", "resource")
    for cluster in clusters:
        nodes.add_metric([cluster.name, "true"], cluster.ready_count)
        nodes.add_metric([cluster.name, "false"], cluster.node_count - cluster.ready_count)
        cards.add_metric([cluster.name], cluster.card_count)
        installed.add_metric([cluster.name], cluster.cards_installed)
        used.add_metric([cluster.name], cluster.gpu_milli_used / 1000)
        for resource in ("cpu", "memory"):
            if whole := cluster.capacity.get(resource, 0):
                ratio.add_metric([cluster.name, resource], cluster.requested.get(resource, 0) / whole)
    yield from (nodes, cards, installed, used, ratio)


def _pods(clusters: Sequence[Cluster]) -> Iterator[Metric]:
    pods = _gauge("hetsched_pods", "Pods that are pending or hold reservations.", "cluster", "state")
    listed = Pod.objects.filter(cluster__in=clusters, state__in=LISTED)  # both columns of the index
    counted = listed.order_by().values_list("cluster__name", "state")
    for cluster, state, count in counted.annotate(n=Count("id")):
        pods.add_metric([cluster, state], count)
    length = _gauge("hetsched_due_pods", "Pods in the active queue.", "cluster")
    oldest = _gauge("hetsched_due_oldest_seconds", "Age of the oldest pod in the active queue.", "cluster")
    due_pods = Pod.objects.filter(Pod.due(timezone.now())).exclude(IN_SHADOW).order_by().values_list("cluster__name")
    for cluster, count, at in due_pods.annotate(n=Count("id"), at=Min("created_at")):
        length.add_metric([cluster], count)
        oldest.add_metric([cluster], _age(at))
    yield from (pods, length, oldest)


def _reservations() -> Iterator[Metric]:
    """Yield the numbers of active, *quarantined* and *leaked* reservations.

    A reservation is quarantined if its pod was force-deleted or its node was deleted. It is leaked if its pod is in a
    state in which pods hold no resources. A leaked reservation also violates invariant I8, but this metric shows it
    before the next invariant check.
    """
    held = _gauge("hetsched_reservations", "Active reservations: all, quarantined, leaked.", "cluster", "state")
    active = Reservation.objects.filter(active=True).order_by().values_list("cluster__name")
    kept = Q(pod__origin=Pod.REMNANT) | Q(node__gone=True)
    over = ~Q(pod__state__in=[state.value for state in HOLDING])
    counted = active.annotate(n=Count("id"), kept=Count("id", filter=kept), over=Count("id", filter=over))
    for cluster, *counts in counted:
        for state, count in zip(("active", "quarantined", "leaked"), counts, strict=True):
            held.add_metric([cluster, state], count)
    yield held


def _effects(clusters: Sequence[Cluster]) -> Iterator[Metric]:
    oldest = _gauge(
        "hetsched_placement_effects_oldest_seconds", "Age of the oldest placement without written effects.", "cluster"
    )
    since = oldest_without_effects()
    for cluster in clusters:
        oldest.add_metric([cluster.name], _age(since.get(cluster.name)))
    yield oldest


def _leases(clusters: Sequence[Cluster]) -> Iterator[Metric]:
    held = _gauge("hetsched_lease_held", "1 if a process holds the lease, else 0.", "cluster", "lease")
    epoch = _gauge("hetsched_lease_epoch", "Number of changes of the lease holder.", "cluster", "lease")
    holder = _gauge("hetsched_lease_holder", "Process that holds the lease.", "cluster", "lease", "holder")
    now = timezone.now()
    rows = [
        (cluster.name, "leader", cluster.leader_epoch, cluster.leader_id, cluster.leader_until) for cluster in clusters
    ]
    for follower in Connection.objects.select_related("cluster").defer("cluster__definitions", "sealed_kubeconfig"):
        name = follower.cluster.name
        rows.append((name, "follower", follower.follower_epoch, follower.follower_id, follower.follower_until))
    for name, lease, number, who, until in rows:
        is_held = until is not None and until >= now
        held.add_metric([name, lease], is_held)
        epoch.add_metric([name, lease], number)
        if is_held:
            holder.add_metric([name, lease, who], 1)
    yield from (held, epoch, holder)


def _watches(clusters: Sequence[Cluster]) -> Iterator[Metric]:
    labels = ("cluster", "resource")
    age = _gauge("hetsched_watch_age_seconds", "Seconds since the last watch message for a resource.", *labels)
    lists = _gauge("hetsched_watch_relists", "Relists of a resource by the current informer.", *labels)
    objects = _gauge("hetsched_watch_objects", "Objects of a resource in the informer store.", *labels)
    odd = _gauge("hetsched_watch_quarantined", "Unreadable objects of a resource; at most 20 are counted.", *labels)
    failures = _gauge("hetsched_watch_failures", "Consecutive failures to list or watch a resource.", *labels)
    ready = _gauge(
        "hetsched_watch_in_step", "1 if the data of a live cluster is fresh enough for decisions, else 0.", "cluster"
    )
    for row in Sync.objects.select_related("cluster").defer("cluster__definitions").order_by("cluster", "resource"):
        where = [row.cluster.name, row.resource]
        if row.alive_at is not None:
            age.add_metric(where, _age(row.alive_at))
        lists.add_metric(where, row.relists)
        objects.add_metric(where, row.objects_count)
        odd.add_metric(where, len(row.quarantined))
        failures.add_metric(where, row.failures)
    for cluster in clusters:
        if cluster.kind == ClusterKind.KUBERNETES:
            ready.add_metric([cluster.name], is_synced(cluster))
    yield from (age, lists, objects, odd, failures, ready)


def _collectors() -> Iterator[Metric]:
    labels = ("cluster", "collector")
    works = _gauge("hetsched_collector_up", "1 if the data of an external source is in use, else 0.", *labels)
    age = _gauge("hetsched_collector_age_seconds", "Seconds since the last response of an external source.", *labels)
    nodes = _gauge("hetsched_collector_nodes", "Nodes reported by an external source.", *labels)
    late = _gauge("hetsched_collector_nodes_stale", "Nodes without usable data from the source.", *labels)
    for row in Collector.objects.filter(enabled=True).select_related("cluster").defer("cluster__definitions"):
        where = [row.cluster.name, row.name]
        works.add_metric(where, row.answered_at is not None and row.stale_since is None)
        if row.answered_at is not None:
            age.add_metric(where, _age(row.answered_at))
        nodes.add_metric(where, row.nodes_reported)
        late.add_metric(where, row.nodes_stale)
    yield from (works, age, nodes, late)


def _tokens() -> Iterator[Metric]:
    ends = _gauge(
        "hetsched_token_expiry_timestamp_seconds", "End of a stored service account token.", "cluster", "purpose"
    )
    failed = _gauge(
        "hetsched_token_renewal_failed", "1 if the latest renewal of a stored token failed.", "cluster", "purpose"
    )
    for cluster, tokens in Connection.objects.order_by("pk").values_list("cluster__name", "stored_tokens"):
        for token in tokens:
            labels = [cluster, token.purpose]
            ends.add_metric(labels, datetime.fromisoformat(token.expires_at).timestamp())
            failed.add_metric(labels, bool(token.failure))
    yield from (ends, failed)


def _agents(clusters: Sequence[Cluster]) -> Iterator[Metric]:
    agents = _gauge("hetsched_agents", "Nodes with an agent, by reporting state.", "cluster", "reporting")
    odd = _gauge("hetsched_facts_quarantined", "Node facts that wait for a review.", "cluster", "change")
    for cluster in clusters:
        found = count_agents(cluster.pk)
        if found is not None:
            agents.add_metric([cluster.name, "true"], found["reporting"])
            agents.add_metric([cluster.name, "false"], found["all"] - found["reporting"])
    rows = NodeFacts.objects.exclude(quarantined=[]).values_list("node__cluster__name", "quarantined")
    counts = Counter((name, item.change) for name, found in rows for item in found if item.state == "open")
    for (name, change), count in sorted(counts.items()):
        odd.add_metric([name, change], count)
    yield from (agents, odd)


def _outbox() -> Iterator[Metric]:
    unsent = OutboxEvent.objects.filter(published_at=None).aggregate(n=Count("id"), at=Min("created_at"))
    yield GaugeMetricFamily("hetsched_outbox_unsent", "Live events that are not sent yet.", value=unsent["n"])
    yield GaugeMetricFamily(
        "hetsched_outbox_oldest_seconds", "Age of the oldest unsent live event.", value=_age(unsent["at"])
    )


def _counter_metrics() -> Iterator[Metric]:
    """Yield the metrics whose samples the processes stored in the database."""
    for figure in metric_names.COUNTERS:
        counter = CounterMetricFamily(figure.name, figure.help, labels=figure.labels)
        for sample in counters.samples(figure):
            counter.add_metric(sample.labels, sample.value)
        yield counter
    for figure in metric_names.HISTOGRAMS:
        histogram = HistogramMetricFamily(figure.name, figure.help, labels=figure.labels)
        for sample in counters.samples(figure):
            histogram.add_metric(sample.labels, _cumulative_buckets(figure, sample), sample.value)
        yield histogram
    broken = _gauge(metric_names.VIOLATIONS.name, metric_names.VIOLATIONS.help, *metric_names.VIOLATIONS.labels)
    looked = _gauge("hetsched_invariants_age_seconds", "Seconds since the last invariant check.")
    checks = counters.samples(metric_names.VIOLATIONS)
    for sample in checks:
        broken.add_metric(sample.labels, sample.value)
    if checks:
        looked.add_metric([], _age(max(sample.at for sample in checks)))
    sealed = not AuditSeal.objects.exclude(problem="").exists()
    yield GaugeMetricFamily(
        "hetsched_audit_chain_ok", "1 if every seal of the audit trail is valid, else 0.", value=sealed
    )
    canary = _gauge("hetsched_canary_age_seconds", "Seconds since the last canary task of a queue.", "queue")
    for sample in counters.samples(metric_names.CANARY):
        canary.add_metric(sample.labels, _age(sample.at))
    goldens = _gauge(metric_names.GOLDENS.name, metric_names.GOLDENS.help, *metric_names.GOLDENS.labels)
    for sample in counters.samples(metric_names.GOLDENS):
        goldens.add_metric(sample.labels, sample.value)
    yield from (broken, looked, canary, goldens)


def _cumulative_buckets(figure: counters.Metric, sample: counters.MetricSample) -> list[tuple[str, float]]:
    """Return cumulative histogram buckets as Prometheus defines them: each counts all values up to its bound."""
    total, buckets = 0.0, []
    for bound in (*(str(bound) for bound in figure.buckets), "+Inf"):
        total += sample.buckets.get(bound, 0.0)
        buckets.append((bound, total))
    return buckets


def _age(at: datetime | None) -> float:
    return 0.0 if at is None else max((timezone.now() - at).total_seconds(), 0.0)
