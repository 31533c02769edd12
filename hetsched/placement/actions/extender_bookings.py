"""Book what another scheduler chose with our help.

Problem: such a pod is no workload of ours until it is bound, and whoever binds it must own what it is told to hold.
Rule: one transaction makes the workload and the pod, records the decision, books it and says that its binding is on its
way. The comparison is that of every decision: booked or changed since the state was read, nothing is written. A binding
that is refused ends the pod here (`reject`): the other scheduler tries again, and asks again. One that nobody knows the
fate of is found out by the worker that binds, like every other.
Invariant: such a pod is never in our own queue.
"""

from __future__ import annotations

import msgspec
from django.db import IntegrityError, transaction

from hetsched.contracts.workload import PodSpec
from hetsched.inventory.ledger import Conflict
from hetsched.inventory.models import Cluster
from hetsched.journal.audit import Program
from hetsched.placement.models import Pod

from .decisions import Result, record
from .progress import begin_binding
from .submissions import take_in

ASKER = Program("extender")


def book_asked(cluster_id: int, spec: PodSpec, result: Result, *, revision: int, snapshot: str) -> tuple[int, int]:
    """Write that `spec` goes where `result` says; return the pod's id and the revision it was booked at.

    The ids in `result.waiting` are those of the rows that are made here.
    Raises: Conflict where something was booked since `revision`, or another pod of this name is live; Contradiction.
    """
    with transaction.atomic():
        # Whoever writes into this cluster next waits for us, and not half-way.
        cluster = Cluster.objects.select_for_update().get(pk=cluster_id)
        try:
            with transaction.atomic():
                (pod,) = take_in(cluster, [[spec]], actor=ASKER, origin=Pod.ASKED)
        except IntegrityError:
            raise Conflict(f"another pod called {spec.key} is live") from None
        waiting = msgspec.structs.replace(result.waiting, pod_id=pod.pk, workload_id=pod.workload_id, spec=pod.spec)
        decided = msgspec.structs.replace(result, waiting=waiting)
        at = record(cluster_id, [decided], revision=revision, epoch=None, snapshot=snapshot)
        begin_binding(cluster_id, [pod.pk])
    return pod.pk, at
