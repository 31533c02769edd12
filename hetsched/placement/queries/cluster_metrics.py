"""Metrics of clusters per minute, used by capacity plans.

There is one row per cluster and minute, written by the first process that measures in that minute. The engine computes
the values, as it does for pages and `simulate`. Rows are kept a little longer than one week, the period over which a
capacity plan is tried.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import structlog

from hetsched.engine.cluster.balance import cluster_metrics
from hetsched.inventory.models import Cluster
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Pod
from hetsched.placement.scheduler_cache import cache_of
from hetsched.policies.models import Measure
from hetsched.policies.plan_contracts import Measured

KEPT = timedelta(days=8)
log = structlog.get_logger(__name__)
_WAITING = sorted((State.PENDING.value, State.NOT_NOW.value))


def measure(cluster: Cluster) -> Measured:
    """Return a cluster's current metrics."""
    with cache_of(cluster.pk).locked_snapshot() as loaded:
        figures = cluster_metrics(loaded.state)
    return Measured(
        gpu_allocation=figures.gpu_allocation,
        cpu_utilization=figures.cpu_utilization,
        memory_utilization=figures.memory_utilization,
        balance=figures.balance,
        pending_pods=float(Pod.objects.filter(cluster=cluster, state__in=_WAITING).count()),
    )


def record_measures(now: datetime) -> int:
    """Write the metrics of this minute for all clusters that have none yet; return how many rows were written."""
    minute = now.replace(second=0, microsecond=0)
    done = set(Measure.objects.filter(at=minute).values_list("cluster_id", flat=True))
    written = 0
    for cluster in Cluster.objects.filter(node_count__gt=0).exclude(pk__in=done).only("pk"):
        try:
            row = Measure(cluster=cluster, at=minute, figures=measure(cluster))
            written += len(Measure.objects.bulk_create([row], ignore_conflicts=True))
        except Exception:  # an unreadable or deleted cluster must not block the others
            log.exception("cluster metrics not recorded", cluster=cluster.pk)
    Measure.objects.filter(at__lt=now - KEPT).delete()
    return written
