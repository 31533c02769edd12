"""`queue/`: what is decided next, and at which place each pod stands.

Rule: places count all pods; a token that is limited to namespaces sees its own pods at their true places.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from hetsched.access.roles import Action
from hetsched.contracts.waits import in_words
from hetsched.engine.gangs import gang_key
from hetsched.placement.forecast import forecast
from hetsched.placement.models import Pod

from . import reach
from .documents import Document, Rows, page_of
from .paging import MAX_LIMIT, limit_of
from .views import ApiView, answer


class QueuedPod(Document, frozen=True):
    """A pod that waits for a decision; `position` 1 is decided next, `attempts` is how often it was tried before.

    `waitsFor` and `triedAt` are of the last try.
    """

    position: int
    pod: str
    workload: str | None
    policy: str
    priority: int
    gang: str | None
    state: str
    attempts: int
    waits_for: str | None
    tried_at: Any


class Queue(ApiView):
    actions: ClassVar = {"GET": Action.VIEW}
    queries: ClassVar = {**reach.CLUSTER_QUERY, "limit": f"Places at most, 1-{MAX_LIMIT}."}

    @extend_schema(responses=page_of(QueuedPod))
    def get(self, request: Any) -> HttpResponse:
        """List the pods that are decided next, in the order in which they would be, were each of them placed."""
        cluster = reach.cluster_of(request.GET.get("cluster", ""))
        found = forecast(cluster.pk, limit_of(request))
        rows = Pod.objects.filter(pk__in=[pod.pod_id for pod in found]).values_list("pk", "waits_for", "tried_at")
        tried = {pk: (in_words(waits), at) for pk, waits, at in rows}
        line = enumerate(found, 1)
        places = [
            QueuedPod(
                position=position,
                pod=pod.spec.key,
                workload=pod.workload_id,
                policy=pod.policy,
                priority=pod.spec.priority,
                gang=gang_key(pod.spec),
                state=pod.state,
                attempts=pod.attempts,
                waits_for=tried[pod.pod_id][0] or None if pod.pod_id in tried else None,
                tried_at=tried[pod.pod_id][1] if pod.pod_id in tried else None,
            )
            for position, pod in line
            if self.subject.may_in(pod.spec.namespace)
        ]
        return answer(request, Rows(places))


routes = [path("queue/", Queue.as_view())]
