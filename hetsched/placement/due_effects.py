"""Placements whose effects on other rows are not written yet, kept by the process that committed them.

`record_placed_arrivals` commits placements without their effects, and the next transaction on the cluster writes the
effects. That transaction usually runs in the same process, which need not read the rows of its own placements again.
The column `effects_due_since` of the locked cluster decides which effects are due. The placements of this process are
complete if the first one began at that revision, and if the last one is the newest change that made decisions void.
Otherwise, for example in the process that takes over from a dead leader, the rows are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec
from django.db import transaction

from hetsched.contracts.objects.allocation import Allocation
from hetsched.inventory.models import Cluster

from .models import Decision, Reservation

MOST_PLACEMENTS = 5000


class CommittedPlacement(NamedTuple):
    """The columns of a reservation, its pod and the pod's decision that the effects depend on."""

    pod_id: int
    node_id: int
    requests: dict[str, int]
    allocation: Allocation
    created_at: datetime
    namespace: str
    name: str
    workload_id: str
    decision_id: int


# The rows of due placements; `record_placed_arrivals` inserts exactly one decision for each of these pods.
_COLUMNS = (
    "pod_id", "node_id", "requests", "allocation", "created_at", "pod__namespace", "pod__name", "pod__workload_id",
    "pod__decisions__id",
)  # fmt: skip


class DueEffects(msgspec.Struct):
    """Placements that were committed under one leader `epoch` from revision `first` to `last`, and their decisions."""

    epoch: int
    first: int
    last: int
    placements: list[CommittedPlacement]
    decisions: list[Decision]


_committed: dict[int, DueEffects] = {}


def keep(cluster: Cluster, epoch: int, reservations: Sequence[Reservation], decisions: Sequence[Decision]) -> None:
    """Keep the placements of this transaction, at the cluster's revision, once it is committed."""
    placements = [
        CommittedPlacement(
            reservation.pod_id,
            reservation.node_id,
            reservation.requests,
            reservation.allocation,
            reservation.created_at,
            decision.namespace,
            decision.pod_name,
            decision.workload_id or "",
            decision.pk,
        )
        for reservation, decision in zip(reservations, decisions, strict=True)
    ]
    revision, since = cluster.revision, cluster.effects_due_since

    def keep_committed() -> None:
        known = _committed.get(cluster.pk)
        if known is None or known.epoch != epoch or since == revision:
            known = _committed[cluster.pk] = DueEffects(epoch, revision, revision, [], [])
        known.last = revision
        known.placements += placements
        known.decisions += decisions
        if len(known.placements) > MOST_PLACEMENTS:
            del _committed[cluster.pk]

    transaction.on_commit(keep_committed)


def due_placements(cluster: Cluster, since: int, newest: int) -> tuple[list[CommittedPlacement], list[Decision] | None]:
    """Return the placements from revision `since` on, in order, and their decisions if this process committed all.

    `newest` is the revision of the latest change that made decisions void. The placements of the transaction that is
    in progress are left out.
    """
    known = _committed.get(cluster.pk)
    if known is not None and known.first == since and known.last == newest:
        transaction.on_commit(lambda: _forget(cluster.pk, known))
        return known.placements, known.decisions
    rows = Reservation.objects.filter(cluster=cluster, revision__range=(since, cluster.revision - 1))
    return [CommittedPlacement(*columns) for columns in rows.order_by("id").values_list(*_COLUMNS)], None


def _forget(cluster_id: int, written: DueEffects) -> None:
    if _committed.get(cluster_id) is written:
        del _committed[cluster_id]
