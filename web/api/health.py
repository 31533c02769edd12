"""`/livez` (`/healthz`) and `/readyz`: for probes, hence open to all and without names of nodes, pods or people.

Rule: alive = this process answers. Ready = the database answers and has all its tables; a broker that is away, workers
that do not work or clusters that nobody follows make the answer *degraded*, not unready: submissions are still accepted
and kept. `?component=NAME` asks for one part alone, and is 503 where that part does not work; `watch` may name a
cluster (`&cluster=NAME`). Ages say when something was last done, or how long it has waited.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec
import structlog
from celery import current_app
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.migrations.executor import MigrationExecutor
from django.db.models import Max, Min, OuterRef, QuerySet, Subquery
from django.http import HttpResponse
from django.urls import path
from django.utils import timezone

from hetsched.inventory.models import Cluster, ClusterKind, Sync
from hetsched.inventory.node_events import in_step
from hetsched.journal import counters, figures
from hetsched.journal.models import OutboxEvent
from hetsched.placement.lifecycle import QUEUED
from hetsched.placement.models import Decision, Pod
from hetsched.placement.queue import IN_SHADOW, due

from .problems import Refused, read_only, response

LATE_SECONDS = 30
LATE_CANARY_SECONDS = 60
_VITAL = frozenset({"database", "migrations"})
log = structlog.get_logger(__name__)


class Component(msgspec.Struct, frozen=True, rename="camel"):
    """One part: whether it works, what is to say about it, and an age in seconds where it has one."""

    ok: bool
    detail: str = ""
    age_seconds: float | None = None


class Readiness(msgspec.Struct, frozen=True, rename="camel"):
    """`status` is ok, degraded (works, late) or unready."""

    status: str
    components: dict[str, Component]
    clusters: dict[str, dict[str, Any]]


def live(request: Any) -> HttpResponse:
    """Say that this process answers."""
    return _json({"status": "ok"})


def ready(request: Any) -> HttpResponse:
    """Say what works, part by part, or whether one part does."""
    if wanted := request.GET.get("component", ""):
        return _one(request, wanted)
    found = components()
    clusters: dict[str, Any] = {}
    if found["database"].ok and found["migrations"].ok:
        clusters = _clusters(timezone.now())
    unready = any(not found[name].ok for name in _VITAL)
    late = not all(component.ok for component in found.values())
    status = "unready" if unready else "degraded" if late else "ok"
    return _json(Readiness(status, found, clusters), 503 if unready else 200)


def components() -> dict[str, Component]:
    """Look at every part; one that raises does not work."""
    return {name: _checked(name, check) for name, check in _CHECKS.items()}


def _one(request: Any, wanted: str) -> HttpResponse:
    cluster = request.GET.get("cluster", "")
    if wanted == "watch" and cluster:
        component = _checked(wanted, lambda: _watch_of_one(cluster))
    elif wanted in _CHECKS:
        component = _checked(wanted, _CHECKS[wanted])
    else:
        hint = f"Known: {', '.join(_CHECKS)}"
        return response(Refused(404, "NotFound", f"there is no component {wanted[:80]!r}", hint=hint), request)
    return _json(component, 200 if component.ok else 503)


def _json(document: Any, status: int = 200) -> HttpResponse:
    body = msgspec.json.encode(document)
    return HttpResponse(body, status=status, content_type="application/json", headers={"Cache-Control": "no-store"})


def _checked(name: str, check: Callable[[], Component]) -> Component:
    try:
        return check()
    except Exception as error:  # whatever a part raises: it does not work, and the others still answer
        log.warning("component not ready", component=name, error=repr(error))
        return Component(False, type(error).__name__)


_migrated = False


def _database() -> Component:
    connection = connections[DEFAULT_DB_ALIAS]
    with connection.cursor() as cursor:
        cursor.execute("SHOW transaction_read_only" if connection.vendor == "postgresql" else "SELECT 'off'")
        takes_writes = cursor.fetchone()[0] == "off"
    return Component(takes_writes, connection.vendor if takes_writes else "it takes no writes")


def _migrations() -> Component:
    global _migrated  # noqa: PLW0603 - a process learns it once
    connection = connections[DEFAULT_DB_ALIAS]
    if not _migrated:
        executor = MigrationExecutor(connection)
        missing = len(executor.migration_plan(executor.loader.graph.leaf_nodes()))
        if missing:
            return Component(False, f"{missing} migrations are missing")
        _migrated = True
    return Component(True)


def _broker() -> Component:
    with current_app.connection_for_write() as connection:
        connection.ensure_connection(max_retries=1, timeout=2)
        return Component(True, str(connection.transport.driver_type))


def _outbox() -> Component:
    oldest = OutboxEvent.objects.filter(published_at=None).aggregate(at=Min("created_at"))["at"]
    age = _age(oldest, timezone.now())
    return Component((age or 0.0) < LATE_SECONDS, "the oldest live event that was not sent", age)


def _scheduler() -> Component:
    now = timezone.now()
    rows = Pod.objects.filter(due(now), state__in=[state.value for state in QUEUED], attempts=0)
    age = _age(rows.exclude(IN_SHADOW).aggregate(at=Min("created_at"))["at"], now)
    latest = _latest_decision().first()
    # A long queue is late, and still works, as long as it moves.
    moving = latest is not None and (now - latest).total_seconds() < LATE_SECONDS
    return Component((age or 0.0) < LATE_SECONDS or moving, "the oldest pod that was never looked at", age)


def _latest_decision() -> QuerySet[Any, datetime]:
    """Return times of decisions, the latest first, by an index: the ledger only grows."""
    return Decision.objects.order_by("-id").values_list("created_at", flat=True)


def _workers() -> Component:
    now = timezone.now()
    at = {one.labels[0]: one.at for one in counters.told(figures.CANARY)}
    missing = sorted(set(settings.HETSCHED_VITAL_QUEUES) - at.keys())
    if missing:
        return Component(False, f"no worker of {', '.join(missing)} was ever seen")
    queue, oldest = min(at.items(), key=lambda item: item[1])
    age = _age(oldest, now) or 0.0
    return Component(age < LATE_CANARY_SECONDS, f"the latest canary of the queue {queue}", age)


def _watch() -> Component:
    return _watch_of(list(Cluster.objects.filter(kind=ClusterKind.KUBERNETES).defer("definitions")))


def _watch_of(clusters: Sequence[Cluster]) -> Component:
    behind = sum(not in_step(cluster) for cluster in clusters)
    rows = Sync.objects.filter(cluster__in=clusters, required=True)
    age = _age(rows.aggregate(at=Min("alive_at"))["at"], timezone.now())
    detail = (
        f"{len(clusters) - behind} of {len(clusters)} live clusters are followed" if clusters else "no live cluster"
    )
    return Component(not behind, detail, age)


def _watch_of_one(name: str) -> Component:
    """Say whether a cluster is followed; one that is not is told like one that does not exist."""
    found = Cluster.objects.filter(name=name, kind=ClusterKind.KUBERNETES).defer("definitions").first()
    if found is None or not in_step(found):
        return Component(False, "no live cluster of this name is followed")
    return _watch_of([found])


_CHECKS: dict[str, Callable[[], Component]] = {
    "database": _database,
    "migrations": _migrations,
    "broker": _broker,
    "outbox": _outbox,
    "scheduler": _scheduler,
    "workers": _workers,
    "watch": _watch,
}


def _clusters(now: datetime) -> dict[str, dict[str, Any]]:
    """Return per cluster when its inventory and its decisions were last brought up to date."""
    reported = dict(Cluster.objects.values_list("name").annotate(at=Max("nodes__updated_at")).order_by())
    latest = Subquery(_latest_decision().filter(cluster=OuterRef("pk"))[:1])
    decided = dict(Cluster.objects.order_by().values_list("name").annotate(at=latest))
    live = Cluster.objects.filter(kind=ClusterKind.KUBERNETES).defer("definitions")
    followed = {cluster.name: in_step(cluster) for cluster in live}
    heard = dict(
        Sync.objects.filter(required=True).values_list("cluster__name").annotate(at=Min("alive_at")).order_by()
    )
    return {
        name: {
            "syncAgeSeconds": _age(heard.get(name) if name in followed else at, now),
            "decisionAgeSeconds": _age(decided.get(name), now),
            "inStep": followed.get(name, True),
        }
        for name, at in sorted(reported.items())
    }


def _age(at: datetime | None, now: datetime) -> float | None:
    return None if at is None else round(max((now - at).total_seconds(), 0.0), 1)


routes = [path("healthz", read_only(live)), path("livez", read_only(live)), path("readyz", read_only(ready))]
