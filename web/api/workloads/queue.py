"""`queue/`: pending pods with the events that they wait for, the time of the next try, and the queue position of pods
in the active queue.

Positions count all pods; a token that is limited to namespaces sees its own pods at their true positions, which are
null behind the first 1000 pods of the cluster. Due pods (in the active queue) come first, in scheduling order; other
pods have no position.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from hetsched.access.roles import Action
from hetsched.contracts.waits import describe_waits
from hetsched.placement.queries.pending_order import QueueEntry, QueueState, list_queue

from .. import request_scope
from ..documents import Document, Rows, page_of
from ..pagination import MAX_LIMIT, limit_of
from ..views import ApiView, answer


class QueuedPod(Document, frozen=True):
    """Pending pod; the pod at `position` 1 is scheduled next. `attempts` is the number of previous scheduling attempts.

    `standing` is the queue state: due (active queue), back-off (until `againAt`), images (being inspected), resting
    (until an event may help, but at most until `againAt`) or gated (by scheduling gates). Only due pods have a
    position. `waitsFor` and `triedAt` describe the last attempt.
    """

    position: int | None
    standing: str
    pod: str
    workload: str | None
    policy: str
    priority: int
    gang: str | None
    state: str
    attempts: int
    waits_for: str | None
    tried_at: datetime | None
    again_at: datetime | None
    created_at: datetime


class QueueView(ApiView):
    actions: ClassVar = {"GET": Action.VIEW}
    queries: ClassVar = {
        **request_scope.CLUSTER_QUERY,
        "limit": f"Maximum number of pods, 1-{MAX_LIMIT}.",
        "standing": f"Only pods in this queue state: {', '.join(QueueState)}.",
    }

    @extend_schema(responses=page_of(QueuedPod))
    def get(self, request: Any) -> HttpResponse:
        """List pending pods: due pods in scheduling order, then the others."""
        cluster = request_scope.selected_cluster(request)
        only = request.GET.get("standing")
        found = list_queue(
            cluster.pk,
            limit_of(request),
            only=QueueState(only) if only else None,
            namespaces=self.subject.namespaces,
        )
        return answer(request, Rows([_queued(entry) for entry in found]))


def _queued(entry: QueueEntry) -> QueuedPod:
    return QueuedPod(
        position=entry.position,
        standing=entry.queue_state,
        pod=entry.key,
        workload=entry.workload_id,
        policy=entry.policy,
        priority=entry.priority,
        gang=entry.gang,
        state=entry.state,
        attempts=entry.attempts,
        waits_for=describe_waits(entry.waits_for) or None,
        tried_at=entry.tried_at,
        again_at=entry.again_at,
        created_at=entry.created_at,
    )


routes = [path("queue/", QueueView.as_view())]
