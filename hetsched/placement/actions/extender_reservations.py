"""Assumed pods of the scheduler extender: reservations for pods that another scheduler places through hetsched.

Such a pod belongs to no workload of hetsched until it is bound, but its reservation must exist before it is bound.
One transaction creates the workload and the pod, records the decision, reserves the resources and marks the binding as
in flight. The revision check is the same as for every decision: if anything was reserved or changed since the state was
read, nothing is written. A rejected binding ends the pod in hetsched (`reject`); the other scheduler retries and calls
the extender again. The binding worker reads back bindings with an unknown result, as for every other pod.
Invariant: such a pod is never in hetsched's scheduling queue.
"""

from __future__ import annotations

import msgspec
from django.db import IntegrityError

from hetsched.contracts.objects.workload import PodSpec
from hetsched.inventory.models import Cluster
from hetsched.inventory.node_loads import Conflict
from hetsched.journal.audit import Program
from hetsched.placement.models import Pod
from hetsched.placement.scheduling_result import Result
from hetsched.storage.write_lock import write_transaction

from .decisions import record
from .progress import begin_binding
from .submissions import accept_pods

ACTOR = Program("extender")


def reserve_requested(
    cluster_id: int, spec: PodSpec, result: Result, *, revision: int, snapshot: str
) -> tuple[int, int]:
    """Record the placement `result` of `spec`; return the pod's id and the revision of the reservation.

    The ids in `result.waiting` are replaced with those of the rows created here.
    Raises: Conflict if something was reserved since `revision` or another pod of this name is live; Contradiction.
    """
    with write_transaction():
        # Lock the cluster: other transactions that write to it wait here, before their first write.
        cluster = Cluster.objects.select_for_update().get(pk=cluster_id)
        try:
            with write_transaction():
                (pod,) = accept_pods(cluster, [[spec]], actor=ACTOR, origin=Pod.ASKED)
        except IntegrityError:
            raise Conflict(f"another pod named {spec.key} is live") from None
        waiting = msgspec.structs.replace(result.waiting, pod_id=pod.pk, workload_id=pod.workload_id, spec=pod.spec)
        decided = msgspec.structs.replace(result, waiting=waiting)
        at = record(cluster_id, [decided], revision=revision, epoch=None, snapshot=snapshot)
        begin_binding(cluster_id, [pod.pk])
    return pod.pk, at
