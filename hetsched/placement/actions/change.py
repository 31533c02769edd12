"""What one transaction changes in one cluster, written and told together.

Problem: six actions move pods between states; each must keep the table, the ledger, the workload's own state, the node
columns and the live topics in step.
Rule: an action opens a `Change` on a cluster that `advance` locked, moves, books and frees pods through it, and closes
it once. A move is an UPDATE that names the states it may come from and is checked by its row count, so a pod that
somebody else moved meanwhile undoes the whole transaction.
Invariants: what `close` publishes is a function of what was written; nothing is published for what was not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

from django.db.models import Count
from django.utils import timezone

from hetsched.contracts.times import rfc3339
from hetsched.contracts.waits import Event
from hetsched.inventory.actions import cluster_topic, node_topic
from hetsched.inventory.ledger import TOTALS, Conflict, Load, add_loads, write_columns
from hetsched.inventory.models import Cluster
from hetsched.inventory.tiles import node_load, tile
from hetsched.journal.publish import Patch, publish_many
from hetsched.placement.pod_counts import cluster_figures, counts_are_due
from hetsched.placement.queries.topics import (
    DECISIONS,
    decisions_patch,
    held_document,
    pod_documents,
    workload_head,
    workload_topic,
)
from hetsched.placement.retry import stir
from hetsched.storage.batches import parts
from hetsched.storage.prepared_queries import Among, Given, Prepared, PreparedUpdate
from hetsched.storage.snapshot_read import shared_now

from ..bookings import Booked, end, insert
from ..callbacks import announce
from ..lifecycle import FINISHED, State, allowed_from, workload_state
from ..models import Decision, Eviction, Nomination, Pod, SubmittedObject, Workload

# A pod that goes back to the queue forgets where it was; its latest decision stays as history.
BACK_IN_QUEUE = {
    "node": None, "allocation": None, "queued": True, "attempts": 0, "not_before": None, "started_at": None,
    "finished_at": None,
}  # fmt: skip

_NOMINATIONS = Prepared(
    lambda: Nomination.objects.filter(pod_id__in=Among("pods"), active=True).values_list("id", flat=True)
)
_OF_WORKLOADS = Among("workloads", str)
_STATES = Prepared(
    lambda: Pod.objects.filter(workload__in=_OF_WORKLOADS).order_by().values_list("workload_id", "state").distinct()
)
_WORKLOADS = Prepared(lambda: Workload.objects.filter(pk__in=_OF_WORKLOADS).defer("manifest"))
_OBJECTS_THERE = Prepared(
    lambda: (
        SubmittedObject.objects.filter(workload__in=_OF_WORKLOADS)
        .order_by()
        .values_list("workload_id", "state", "workload__pod_count")
        .distinct()
    )
)


@lru_cache(maxsize=64)
def _move(to: State, columns: tuple[str, ...]) -> PreparedUpdate:
    """Return how pods are moved into a state, with these columns."""
    given: dict[str, Any] = {name: Given(name) for name in columns}
    rows = partial(Pod.objects.filter, pk__in=Among("pods"), state__in=allowed_from(to))
    return PreparedUpdate(rows, state=to.value, **given)


class Change:
    """One open transaction on one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.now: datetime = timezone.now()
        self._pods: set[int] = set()
        self._workloads: set[str] = set()
        self._loads: dict[int, Load] = defaultdict(Load)
        self._held: dict[int, dict[str, dict[str, Any] | None]] = defaultdict(dict)
        self._columns: set[str] = set()  # of the cluster, to be written at the end

    @cached_property
    def shared_now(self) -> datetime:
        """Return the time that all processes share, for what others will free or take over by it."""
        return shared_now()

    def touch(self, pods: Iterable[Pod]) -> None:
        """Note that these pods are told anew, with their workloads."""
        for pod in pods:
            self.touch_row(pod.pk, pod.workload_id)

    def touch_workload(self, workload_id: str) -> None:
        """Note that this workload's own columns are told anew."""
        self._workloads.add(workload_id)

    def touch_row(self, pod_id: int, workload_id: str | None) -> None:
        self._pods.add(pod_id)
        if workload_id is not None:
            self._workloads.add(workload_id)

    def move(self, pods: Sequence[Pod], to: State, **columns: Any) -> None:
        """Move pods into a state and set columns with it.

        Raises: Conflict when one of them is in a state from which it may not come there.
        """
        if not pods:
            return
        moved = _move(to, tuple(sorted(columns)))(pods=[pod.pk for pod in pods], **columns)
        if moved != len(pods):
            raise Conflict(f"{len(pods) - moved} of {len(pods)} pods may not become {to.value} any more")
        if to is State.CANCELLED:
            self.end_nominations([pod.pk for pod in pods], "the pod is gone")
        self.touch(pods)

    def book(self, bookings: Sequence[Booked], epoch: int) -> None:
        """Reserve what placed pods hold; the unique indexes judge.

        Raises: IntegrityError when something is held already, or a card would be given out beyond 1000.
        """
        if bookings:
            self.decide_anew()
            self._stir(Event.POD_PLACED)
        for reservation, booked in zip(insert(self.cluster, bookings, epoch, self.now), bookings, strict=True):
            self._loads[booked.node_id].add(reservation.requests, booked.gpu_milli)
            self._held[booked.node_id][booked.spec.key] = held_document(reservation)

    def decide_anew(self) -> None:
        """Make decisions void that were made on an earlier revision and are not written yet."""
        self.cluster.decisive_revision = self.cluster.revision
        self._columns.add("decisive_revision")

    def free(self, pods: Sequence[Pod], reason: str) -> None:
        """End the active reservations of these pods, exactly."""
        if not pods:
            return
        for reservation in end([pod.pk for pod in pods], self.cluster, reason, self.now):
            milli = sum(card.milli for card in reservation.allocation.gpus)
            self._loads[reservation.node_id].add(reservation.requests, milli, -1)
            self._held[reservation.node_id][reservation.pod.key] = None

    def end_nominations(self, pod_ids: Sequence[int], reason: str) -> int:
        """End what is kept for these pods, and ask nobody else to leave for them; return how many had something."""
        ended = 0
        for some in parts(_NOMINATIONS(pods=pod_ids)):
            wanted = Eviction.objects.filter(nomination_id__in=some, state=Eviction.WANTED)
            wanted.update(state=Eviction.DROPPED)
            ended += Nomination.objects.filter(pk__in=some).update(
                active=False, ended_revision=self.cluster.revision, ended_at=self.now, end_reason=reason[:300]
            )
        if ended:
            self.requeue()
        return ended

    def requeue(self) -> None:
        """Have the scheduler look again, after their back-off, at pods that wait for others to leave."""
        self._stir(Event.POD_RELEASED)

    def _stir(self, event: Event) -> None:
        stir(self.cluster, {event}, write=False)
        self._columns.add("stirred")

    # -- the end -------------------------------------------------------------------------------------------------

    def close(self, decisions: Sequence[Decision] = ()) -> None:
        """Write what follows from the moves and bookings, and tell it; counts alone may be left to `count_up`."""
        nodes = add_loads(self.cluster, self._loads) if self._loads else {}
        if nodes:
            self._columns.update(TOTALS)
        if self._columns:
            write_columns([self.cluster], self._columns)
        workloads = self._settle_workloads()
        if not (nodes or workloads or decisions) and not counts_are_due(self.cluster.pk):
            return
        patches: dict[str, Patch | Callable[[], Patch]] = {
            workload_topic(workload_id): patch for workload_id, patch in workloads.items()
        }
        tiles = {node.name: tile(node) for node in nodes.values()}
        for node_id, node in nodes.items():
            pods = self._held[node_id]
            patches[node_topic(self.cluster, node.name)] = {**node_load(node), "pods": pods}
        patches[cluster_topic(self.cluster)] = lambda: {**cluster_figures(self.cluster), "nodes": tiles}
        if decisions:
            patches[DECISIONS] = lambda: decisions_patch(self.cluster, decisions)
        publish_many(patches)

    def _settle_workloads(self) -> dict[str, Patch]:
        """Derive the state of every touched workload from its pods; return the patches of their topics."""
        patches: dict[str, Patch] = {}
        changed_pods: dict[str, dict[str, Any]] = defaultdict(dict)
        for workload_id, key, document in pod_documents(self._pods) if self._pods else ():
            changed_pods[workload_id][key] = document
        if not self._workloads:
            return patches
        states: dict[str, set[str]] = defaultdict(set)
        for workload_id, state in _STATES(workloads=self._workloads):
            states[workload_id].add(state)
        for workload_id, follows in states_there(self._workloads).items():
            over = _FINISHED if follows.of_jobs else set()
            states[workload_id] = (states[workload_id] - over) | follows.states
        changed = []
        for workload in _WORKLOADS(workloads=self._workloads):
            if self._settle(workload, workload_state(states[workload.pk])):
                changed.append(workload)
            patches[workload.pk] = {**workload_head(workload), "pods": changed_pods[workload.pk]}
        write_columns(changed, ("state", "history", "decided_at", "finished_at", "revision"))
        announce(self.cluster, changed, self.now)
        return patches

    def _settle(self, workload: Workload, state: State) -> bool:
        if workload.state == state.value:
            return False
        workload.state = state.value
        workload.revision += 1
        workload.history = [*workload.history, [state.value, rfc3339(self.now)]]
        if workload.decided_at is None and state is not State.PENDING:
            workload.decided_at = self.now
        workload.finished_at = self.now if state in FINISHED else None
        return True


# What an object in a live cluster says about its workload, whatever its pods say; and where it has none.
_ALWAYS = {SubmittedObject.WANTED: State.PENDING, SubmittedObject.REFUSED: State.MISCONFIGURED}
_WITHOUT_PODS = {SubmittedObject.UNWANTED: State.PENDING, SubmittedObject.GONE: State.CANCELLED}


# What Jobs in a live cluster say of their workload, whatever became of single pods of theirs.
_FINISHED = {state.value for state in FINISHED}
_OF_JOBS = {
    SubmittedObject.ENDING: State.RUNNING,
    SubmittedObject.SUCCEEDED: State.SUCCEEDED,
    SubmittedObject.FAILED: State.FAILED,
}


class Follows(NamedTuple):
    """What follows for a workload from its objects in a live cluster.

    `of_jobs`: it is nothing but Jobs of which pods ended, and they have the say about pods that are over.
    """

    states: set[str]
    of_jobs: bool


def states_there(workload_ids: Iterable[str]) -> dict[str, Follows]:
    """Return what follows for workloads from their objects in a live cluster; pods may still be on their way."""
    objects = _OBJECTS_THERE(workloads=workload_ids)
    if not objects:
        return {}
    kinds: dict[str, set[str]] = defaultdict(set)
    for workload_id, state, _ in objects:
        kinds[workload_id].add(state)
    found = {workload_id: Follows(set(), states <= _OF_JOBS.keys()) for workload_id, states in kinds.items()}
    pods = Pod.objects.filter(workload_id__in=set(found)).order_by()
    counts = dict(pods.values_list("workload_id").annotate(Count("id")))
    for workload_id, state, expected in objects:
        count = counts.get(workload_id, 0)
        follows = _ALWAYS.get(state) or (None if count else _WITHOUT_PODS.get(state))
        if state == SubmittedObject.MADE and count < expected:
            follows = State.PENDING
        if found[workload_id].of_jobs:
            follows = _OF_JOBS[state]
        if follows is not None:
            found[workload_id].states.add(follows.value)
    return found
