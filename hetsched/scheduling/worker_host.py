"""Host of the scheduling loop in a Celery task, for offline clusters and for pods that no informer process decides.

One task per cluster is the leader and iterates until no pod is due. After releasing the leader lease it checks the
queue again, because a task that was woken in the meantime could not acquire the lease.
A batch of one pod takes nearly as long as a batch of ten. If a batch emptied the queue but further pods are due when it
has been written, the leader pauses for `RESTS` times the duration of that batch, at most `LONGEST_REST_SECONDS`. It
then decides the pods that have arrived in one batch.
"""

from __future__ import annotations

import os
import random
import socket
import time

from django.conf import settings

from hetsched.inventory.connections import is_in_shadow
from hetsched.inventory.models import Cluster, ClusterKind
from hetsched.inventory.node_events import is_synced
from hetsched.journal import counters, metric_names
from hetsched.placement import dispatch
from hetsched.placement.scheduling_queue.active_queue import has_active_pods

from .leases import Lease, leading
from .scheduling_loop import BatchState, SchedulingLoop

MOST_CONFLICTS = 5
RESTS = 3
LONGEST_REST_SECONDS = 0.2
# after this time the task ends and enqueues its successor, because other clusters and canaries share this worker
TURN_SECONDS = 5.0


def run(cluster_id: int) -> int:
    """Decide a cluster's pods until none is due or `TURN_SECONDS` have passed; return the number of decisions."""
    counters.add(metric_names.CANARY, "schedule")
    return WorkerHost(cluster_id).run()


class WorkerHost:
    """Host of the scheduling loop that leaves the placed pods to the binding task."""

    binds = False
    leaves_effects = False
    copies_labels = False

    def __init__(self, cluster_id: int) -> None:
        self._cluster_id = cluster_id
        self._until = time.monotonic() + TURN_SECONDS

    def run(self) -> int:
        """Run the loop, acquiring the lease as often as needed; return how many decisions were recorded."""
        decided = 0
        while has_active_pods(self._cluster_id):
            if time.monotonic() > self._until:
                dispatch.send(self._cluster_id, dispatch.SCHEDULE)
                break
            lease = leading.take(self._cluster_id, f"{socket.gethostname()}/{os.getpid()}")
            if lease is None:
                break
            try:
                recorded, lost = self._lead(lease)
            finally:
                leading.release(lease)
            decided += recorded
            # Release the worker for other clusters; a periodic task wakes this task again.
            if lost or not (recorded or self.may_decide()):
                break
        return decided

    def may_decide(self) -> bool:
        cluster = Cluster.objects.filter(pk=self._cluster_id).only("id", "kind").first()
        if cluster is None or cluster.kind != ClusterKind.KUBERNETES:
            return cluster is not None
        return is_synced(cluster) and not is_in_shadow(self._cluster_id)

    def still_leads(self, lease: Lease) -> bool:
        return leading.renew(lease)

    def _lead(self, lease: Lease) -> tuple[int, bool]:
        """Iterate under one lease; return how many decisions were recorded, and whether too many batches were lost.

        No iteration begins after `TURN_SECONDS`, except to halve a rejected batch or to repeat a batch that lost the
        compare-and-set.
        """
        name = Cluster.objects.values_list("name", flat=True).get(pk=self._cluster_id)
        loop = SchedulingLoop(self, self._cluster_id, name, settings.HETSCHED_BATCH)
        decided = conflicts = 0
        while True:
            began = time.monotonic()
            found = loop.iterate(lease)
            if found.state is BatchState.REFUSED:
                continue
            if found.state is BatchState.LOST:
                conflicts += 1
                if conflicts > MOST_CONFLICTS or not leading.renew(lease):
                    return decided, True
                time.sleep(random.uniform(0, 0.02 * 2**conflicts))  # noqa: S311 - jitter, not a secret
                continue
            decided += len(found.results)
            if not found.more and not (found.results and has_active_pods(self._cluster_id)):
                return decided, False
            if time.monotonic() > self._until:
                return decided, False
            conflicts = 0
            if not found.more:
                time.sleep(min(LONGEST_REST_SECONDS, RESTS * (time.monotonic() - began)))
