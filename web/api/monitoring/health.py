"""`/livez` (`/healthz`) and `/readyz` for probes. They are public, so they contain no names of nodes, pods or users.

Alive: this process responds. Ready: the database responds and has all its tables, the login page can be rendered, and a
worker took a task from the decision queue in the last 10 s. An unavailable broker, failed workers, clusters without an
informer or tokens that were not renewed make the result *degraded*, not unready, because submissions are still accepted
and stored.
`?component=NAME` checks one component and returns 503 if it does not work. `web` combines the components that a web
process needs, for the readiness probe of web processes. `watch` can be limited to one cluster (`&cluster=NAME`).
`ageSeconds` is the time since the last success of the component, or the time for which its oldest event or pod has been
waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
import structlog
from celery import current_app
from django.conf import settings
from django.contrib.auth.forms import AuthenticationForm
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.migrations.executor import MigrationExecutor
from django.db.models import Max, Min, OuterRef, QuerySet, Subquery
from django.http import HttpResponse
from django.template.loader import render_to_string
from django.urls import path
from django.utils import timezone

from hetsched.contracts.documents import encode
from hetsched.contracts.message import Message, joined
from hetsched.inventory.models import Cluster, ClusterKind, Connection, Sync
from hetsched.inventory.node_events import is_synced
from hetsched.journal import counters, metric_names
from hetsched.journal.models import OutboxEvent
from hetsched.placement.lifecycle import QUEUED
from hetsched.placement.models import Decision, Pod
from hetsched.placement.queries.placement_effects import oldest_without_effects
from hetsched.placement.scheduling_queue.active_queue import IN_SHADOW

from ..problems import RequestRefused, read_only, response

LATE_SECONDS = 30
LATE_CANARY_SECONDS = 60
LATE_STANDBY_SECONDS = 20  # a warm standby reports every 5 s
LATE_DECISIONS_SECONDS = 10
_VITAL = frozenset({"database", "migrations", "pages", "schedule-queue"})
# Components that a web process needs. Other processes are left out: a failed worker must not take the console out of
# service.
_WEB = ("database", "migrations", "pages")
log = structlog.get_logger(__name__)


class Component(msgspec.Struct, frozen=True, rename="camel"):
    """State of a component: whether it works, a note, and the age in seconds that the note explains, or null."""

    ok: bool
    detail: str = ""
    age_seconds: float | None = None


class Readiness(msgspec.Struct, frozen=True, rename="camel"):
    """Readiness of the installation; `status` is ok, degraded (works, but late) or unready."""

    status: str
    components: dict[str, Component]
    clusters: dict[str, dict[str, Any]]


def live(request: Any) -> HttpResponse:
    """Respond that this process is alive."""
    return _json({"status": "ok"})


def ready(request: Any) -> HttpResponse:
    """Return the state of all components, or of one."""
    if wanted := request.GET.get("component", ""):
        return _component_response(request, wanted)
    found = components()
    clusters: dict[str, Any] = {}
    if found["database"].ok and found["migrations"].ok:
        clusters = _clusters(timezone.now())
    unready = any(not found[name].ok for name in _VITAL)
    late = not all(component.ok for component in found.values())
    status = "unready" if unready else "degraded" if late else "ok"
    return _json(Readiness(status, found, clusters), 503 if unready else 200)


def components() -> dict[str, Component]:
    """Check every component; a component whose check raises an exception does not work."""
    return {name: _checked(name, check) for name, check in _CHECKS.items()}


def _component_response(request: Any, wanted: str) -> HttpResponse:
    cluster = request.GET.get("cluster", "")
    if wanted == "watch" and cluster:
        component = _checked(wanted, lambda: _watch_of_one(cluster))
    elif wanted == "web":
        component = _checked(wanted, _web)
    elif wanted in _CHECKS:
        component = _checked(wanted, _CHECKS[wanted])
    else:
        message = Message("unknown component {name}", name=repr(wanted[:80]))
        hint = Message("Known: {names}", names=joined(", ", (*_CHECKS, "web")))
        return response(RequestRefused(404, "NotFound", message, hint=hint), request)
    return _json(component, 200 if component.ok else 503)


def _json(document: Any, status: int = 200) -> HttpResponse:
    body = encode(document)
    return HttpResponse(body, status=status, content_type="application/json", headers={"Cache-Control": "no-store"})


def _checked(name: str, check: Callable[[], Component]) -> Component:
    try:
        return check()
    except Exception as error:  # any exception means that the component does not work; the others are still checked
        log.warning("component not ready", component=name, error=repr(error))
        return Component(False, type(error).__name__)


_migrated = False
_rendered = False


def _database() -> Component:
    connection = connections[DEFAULT_DB_ALIAS]
    with connection.cursor() as cursor:
        cursor.execute("SHOW transaction_read_only" if connection.vendor == "postgresql" else "SELECT 'off'")
        takes_writes = cursor.fetchone()[0] == "off"
    return Component(takes_writes, connection.vendor if takes_writes else "the database is read-only")


def _migrations() -> Component:
    global _migrated  # noqa: PLW0603 - cached, because a process checks it only until it is true
    connection = connections[DEFAULT_DB_ALIAS]
    if not _migrated:
        executor = MigrationExecutor(connection)
        missing = len(executor.migration_plan(executor.loader.graph.leaf_nodes()))
        if missing:
            return Component(False, f"{missing} migrations are not applied")
        _migrated = True
    return Component(True)


def _pages() -> Component:
    """Render the login page once per process: it needs the templates, the static files and the translations."""
    global _rendered  # noqa: PLW0603 - cached, because templates do not change while a process runs
    if not _rendered:
        render_to_string("access/login.html", {"form": AuthenticationForm(), "passwords": True})
        _rendered = True
    return Component(True)


def _broker() -> Component:
    with current_app.connection_for_write() as connection:
        connection.ensure_connection(max_retries=1, timeout=2)
        return Component(True, str(connection.transport.driver_type))


def _outbox() -> Component:
    oldest = OutboxEvent.objects.filter(published_at=None).aggregate(at=Min("created_at"))["at"]
    age = _age(oldest, timezone.now())
    return Component((age or 0.0) < LATE_SECONDS, "age of the oldest unsent live event", age)


def _effects() -> Component:
    age = _age(min(oldest_without_effects().values(), default=None), timezone.now())
    return Component((age or 0.0) < LATE_SECONDS, "age of the oldest placement without written effects", age)


def _scheduler() -> Component:
    now = timezone.now()
    rows = Pod.objects.filter(Pod.due(now), state__in=[state.value for state in QUEUED], attempts=0)
    age = _age(rows.exclude(IN_SHADOW).aggregate(at=Min("created_at"))["at"], now)
    latest = _latest_decision().first()
    # A long queue causes delays, but the scheduler still works as long as it makes decisions.
    moving = latest is not None and (now - latest).total_seconds() < LATE_SECONDS
    return Component((age or 0.0) < LATE_SECONDS or moving, "age of the oldest pod without a scheduling attempt", age)


def _latest_decision() -> QuerySet[Any, datetime]:
    """Return the times of decisions, latest first. They are ordered by id: ids grow with time and have an index."""
    return Decision.objects.order_by("-id").values_list("created_at", flat=True)


def _schedule_queue() -> Component:
    """Check that a worker keeps taking tasks from the decision queue."""
    served = next(
        (sample.at for sample in counters.samples(metric_names.CANARY) if sample.labels[0] == "schedule"), None
    )
    if served is None:
        return Component(False, "no worker has ever served the queue schedule")
    age = _age(served, timezone.now()) or 0.0
    return Component(age < LATE_DECISIONS_SECONDS, "time since a worker took a task from the queue schedule", age)


def late_seconds(queue: str) -> float:
    """Return the number of seconds without a canary task after which a queue is reported as not served."""
    return LATE_DECISIONS_SECONDS if queue == "schedule" else LATE_CANARY_SECONDS


def _web() -> Component:
    """Check the components that a web process needs."""
    failed = [name for name in _WEB if not _checked(name, _CHECKS[name]).ok]
    return Component(not failed, ", ".join(failed))


def _workers() -> Component:
    now = timezone.now()
    at = {sample.labels[0]: sample.at for sample in counters.samples(metric_names.CANARY)}
    missing = sorted(set(settings.HETSCHED_VITAL_QUEUES) - at.keys())
    if missing:
        return Component(False, f"no worker has ever served the queue {', '.join(missing)}")
    queue, oldest = min(at.items(), key=lambda item: item[1])
    age = _age(oldest, now) or 0.0
    return Component(age < LATE_CANARY_SECONDS, f"age of the latest canary of the queue {queue}", age)


def _watch() -> Component:
    return _watch_of(list(Cluster.objects.filter(kind=ClusterKind.KUBERNETES).defer("definitions")))


def _watch_of(clusters: Sequence[Cluster]) -> Component:
    behind = sum(not is_synced(cluster) for cluster in clusters)
    rows = Sync.objects.filter(cluster__in=clusters, required=True)
    age = _age(rows.aggregate(at=Min("alive_at"))["at"], timezone.now())
    detail = f"{len(clusters) - behind} of {len(clusters)} live clusters are watched" if clusters else "no live cluster"
    warm = _clusters_with_standby(clusters)
    if warm:
        detail += f", {warm} with a warm standby"
    return Component(not behind, detail, age)


def _clusters_with_standby(clusters: Sequence[Cluster]) -> int:
    """Return how many clusters have a standby that has reported within `LATE_STANDBY_SECONDS`."""
    since, names = timezone.now() - timedelta(seconds=LATE_STANDBY_SECONDS), {cluster.name for cluster in clusters}
    return sum(sample.labels[0] in names and sample.at >= since for sample in counters.samples(metric_names.STANDBY))


def _watch_of_one(name: str) -> Component:
    """Check whether a cluster has an informer in sync. An unknown cluster gets the same result as a cluster without
    one, so that the result does not reveal names.
    """
    found = Cluster.objects.filter(name=name, kind=ClusterKind.KUBERNETES).defer("definitions").first()
    if found is None or not is_synced(found):
        return Component(False, "no live cluster of this name is watched")
    return _watch_of([found])


def _tokens() -> Component:
    """Check that the latest renewal of no stored service account token failed."""
    tokens = [token for tokens in Connection.objects.values_list("stored_tokens", flat=True) for token in tokens]
    failed = sum(bool(token.failure) for token in tokens)
    if not failed:
        return Component(True)
    detail = (
        f"{failed} of {len(tokens)} stored tokens were not renewed: run `hetsched cluster test` for each live cluster"
    )
    return Component(False, detail)


_CHECKS: dict[str, Callable[[], Component]] = {
    "database": _database,
    "migrations": _migrations,
    "pages": _pages,
    "broker": _broker,
    "outbox": _outbox,
    "effects": _effects,
    "scheduler": _scheduler,
    "schedule-queue": _schedule_queue,
    "workers": _workers,
    "watch": _watch,
    "tokens": _tokens,
}


def _clusters(now: datetime) -> dict[str, dict[str, Any]]:
    """Return the age of the latest inventory and of the latest decision of each cluster, and whether its informer is in
    sync.
    """
    reported = dict(Cluster.objects.values_list("name").annotate(at=Max("nodes__updated_at")).order_by())
    latest = Subquery(_latest_decision().filter(cluster=OuterRef("pk"))[:1])
    decided = dict(Cluster.objects.order_by().values_list("name").annotate(at=latest))
    live = Cluster.objects.filter(kind=ClusterKind.KUBERNETES).defer("definitions")
    followed = {cluster.name: is_synced(cluster) for cluster in live}
    alive_at = dict(
        Sync.objects.filter(required=True).values_list("cluster__name").annotate(at=Min("alive_at")).order_by()
    )
    return {
        name: {
            "syncAgeSeconds": _age(alive_at.get(name) if name in followed else at, now),
            "decisionAgeSeconds": _age(decided.get(name), now),
            "inStep": followed.get(name, True),
        }
        for name, at in sorted(reported.items())
    }


def _age(at: datetime | None, now: datetime) -> float | None:
    return None if at is None else round(max((now - at).total_seconds(), 0.0), 1)


routes = [path("healthz", read_only(live)), path("livez", read_only(live)), path("readyz", read_only(ready))]
