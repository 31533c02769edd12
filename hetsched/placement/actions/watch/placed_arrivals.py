"""Commit of arriving pods together with their placements.

A pod of a live cluster needs no row before its decision: the API server keeps it, and a restarted informer lists it
again. The leader therefore decides an arriving pod from memory. One transaction then inserts the pod, its workload, its
decision and its reservation; on PostgreSQL, the rows of a pod alone are one statement. The unique indexes enforce
exclusivity as in `decisions.record`. Node loads, states of workloads, the audit trail, live events and requeued pods
follow with the next transaction on the cluster; see `change.ClusterTransaction`.
Any commit on the cluster since the revision of the decisions is a conflict, not only a reservation. An informer that
lost its lease can therefore not insert a pod that its successor no longer lists.
Invariant: nothing is bound that is not committed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec
from django.db import IntegrityError

from hetsched.contracts.waits import bits_of
from hetsched.inventory.models import Cluster
from hetsched.inventory.node_loads import Contradiction, advance, write_columns
from hetsched.journal.audit import SYSTEM
from hetsched.placement.in_place import fingerprint
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Pod, Workload
from hetsched.placement.reservation_ledger import build as build_reservations
from hetsched.placement.scheduling_queue.decision_time import add_used_seconds
from hetsched.placement.scheduling_result import Result
from hetsched.storage.bulk_rows import refer
from hetsched.storage.write_lock import write_transaction

from ... import due_effects
from ..change import ClusterTransaction
from ..decisions import check_policies, decision_row, reserved_pod
from ..submissions import build_workload


class PlacedArrivals(msgspec.Struct, frozen=True):
    """The revision of the commit, and the results with the IDs of the inserted pods."""

    revision: int
    results: list[Result]


def record_placed_arrivals(
    cluster_id: int,
    arrivals: Sequence[tuple[Pod, Result]],
    *,
    revision: int,
    epoch: int,
    snapshot: str,
    spent: Mapping[str, float] | None = None,
) -> PlacedArrivals:
    """Insert unsaved pods with their placements, decided on exactly `revision` by the leader of `epoch`.

    The caller binds the pods right after the commit: they are *binding* from then on. `spent` maps namespaces to the
    seconds that their decisions took since the last commit.
    Raises: Conflict if anything was committed since; Contradiction if a pod of this name is live or its resources are
    reserved already.
    """
    try:
        with write_transaction():
            cluster = advance(cluster_id, revision=revision, epoch=epoch, is_exact=True, places=True)
            check_policies([result for _, result in arrivals])
            now = cluster.locked_at
            if spent:
                cluster.decision_time = add_used_seconds(cluster.decision_time, spent, now.timestamp())
                write_columns([cluster], ("decision_time",))
            pods = [pod for pod, _ in arrivals]
            workloads = _workloads(cluster, arrivals, now)
            decisions = [decision_row(cluster, result, revision, snapshot, now) for _, result in arrivals]
            reserved = build_reservations(cluster, [reserved_pod(result) for _, result in arrivals], epoch, now)
            for pod, decision, reservation in zip(pods, decisions, reserved.reservations, strict=True):
                decision.workload_id = pod.workload_id
                refer(decision, "pod", pod)
                refer(reservation, "pod", pod)
            reserved.insert(workloads, pods, decisions)
            due_effects.keep(cluster, epoch, reserved.reservations, decisions)
    except IntegrityError as error:
        raise Contradiction(f"cluster {cluster_id}: {error}", len(arrivals)) from error
    return PlacedArrivals(cluster.revision, [_with_ids(pod, result) for pod, result in arrivals])


def write_placement_effects(cluster_id: int) -> int:
    """Write and publish the effects of committed placements on nodes, workloads and pending pods.

    Return the revision of the commit.
    """
    with write_transaction():
        change = ClusterTransaction(advance(cluster_id))
        change.close()
    return change.cluster.revision


def _workloads(cluster: Cluster, arrivals: Sequence[tuple[Pod, Result]], now: datetime) -> list[Workload]:
    """Assign the pods to their nodes, and to one unsaved workload for each controller; return the workloads."""
    groups: dict[tuple[str, str], list[Pod]] = defaultdict(list)
    for pod, result in arrivals:
        groups[pod.namespace, pod.spec.controller or pod.name].append(pod)
        pod.state, pod.queued, pod.attempts, pod.helped_by = State.BINDING.value, False, 1, bits_of(())
        pod.node_id, pod.allocation = result.node_id, result.allocation
        if result.reserved_spec is not None:
            pod.fingerprint = fingerprint(result.reserved_spec)
        pod.decided_at = pod.tried_at = pod.created_at = now
    workloads = []
    for pods in groups.values():
        workload = build_workload(cluster, pods, SYSTEM, "")
        workloads.append(workload)
        for pod in pods:
            pod.workload = workload
    return workloads


def _with_ids(pod: Pod, result: Result) -> Result:
    waiting = msgspec.structs.replace(result.waiting, pod_id=pod.pk, workload_id=pod.workload_id)
    return msgspec.structs.replace(result, waiting=waiting)
