"""Changes of one transaction to one cluster, written and published together.

Several actions move pods between states; each must keep the pods, the reservations, the workload states, the node loads
and the live topics consistent.
An action opens a `ClusterTransaction` on a cluster that `advance` locked, moves pods, reserves and frees their
resources through it, and closes it once. A move is an UPDATE with the permitted previous states in its condition. If it
changes fewer rows than expected, a concurrent writer has moved one of the pods, and the whole transaction is rolled
back.
Invariants: the published documents depend only on the written rows; only `close` publishes them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property, partial
from typing import Any, NamedTuple

from django.db.models import Count
from django.utils import timezone

from hetsched.contracts.message import Message, to_column
from hetsched.contracts.times import rfc3339
from hetsched.contracts.waits import Event
from hetsched.inventory.actions import cluster_topic
from hetsched.inventory.models import Cluster, ClusterKind
from hetsched.inventory.node_events import NodeChanges
from hetsched.inventory.node_loads import TOTALS, Conflict, Load, add_loads, write_columns
from hetsched.journal.audit import SYSTEM, record_many
from hetsched.journal.publish import Patch, publish_many
from hetsched.placement.queries.pod_counts import cluster_metrics_patch, counts_are_due
from hetsched.placement.queries.topics import (
    DECISIONS,
    LATEST,
    decisions_patch,
    pod_documents,
    workload_head,
    workload_topic,
)
from hetsched.placement.scheduling_queue.unschedulable_pods import requeue_pods
from hetsched.placement.touched_nodes import HeldResources, TouchedNodes
from hetsched.storage.batches import batched
from hetsched.storage.bulk_rows import write_values
from hetsched.storage.hot_statements import WORKLOADS, move_pods

from .. import dispatch
from ..due_effects import due_placements
from ..lifecycle import FINISHED, State, allowed_from, workload_state
from ..models import Decision, Eviction, Nomination, Pod, SubmittedObject, Workload
from ..models.nominations import nominations_of_gang
from ..notifications.callbacks import enqueue_deliveries
from ..reservation_ledger import ReservedPod, end, insert
from ..scheduling_queue.decision_time import add_used_seconds

# Moves to these states make the latest decision of a pod reportable, or change what is reported about it.
_REPORTABLE = frozenset({State.BOUND, State.RUNNING, State.PENDING})
MOST_STATES = 200  # of a workload's history, which is part of each of its live events

# A requeued pod loses its node and allocation. Its latest decision is kept as history.
BACK_IN_QUEUE = {
    "node": None, "allocation": None, "queued": True, "attempts": 0, "not_before": None, "started_at": None,
    "finished_at": None,
}  # fmt: skip


def move_rows(pod_ids: Sequence[int], to: State, **columns: Any) -> int:
    """Move the pods whose state permits the transition to `to`, and set `columns`; return how many pods moved."""
    if "message" in columns:
        columns["message"] = to_column(columns["message"])
    return move_pods(tuple(sorted(columns)))(pods=pod_ids, before=allowed_from(to), state=to.value, **columns)


def write_messages(messages: Iterable[tuple[Message | str, int]]) -> None:
    """Write the messages of pods, given as pairs of a message and a pod id."""
    write_values(Pod, ("message",), [(to_column(message), pk) for message, pk in messages])


class ClusterTransaction:
    """An open transaction that changes the rows of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.now: datetime = timezone.now()
        self._pods: set[int] = set()
        self._workloads: set[str] = set()
        self._loads: dict[int, Load] = defaultdict(Load)
        self._nodes = TouchedNodes(cluster)
        self._columns: set[str] = set()  # cluster columns that `close` writes
        self._has_moved = self._has_reports = False
        self._decisive_revision = cluster.decisive_revision  # before this transaction

    @property
    def database_now(self) -> datetime:
        """Return the database's time, which all processes share, for deadlines that other processes check."""
        return self.cluster.locked_at

    def touch(self, pods: Iterable[Pod]) -> None:
        """Mark these pods and their workloads for publishing."""
        self.touch_rows(pod.pk for pod in pods)

    def touch_workload(self, workload_id: str) -> None:
        """Mark this workload for publishing, without its pods."""
        self._workloads.add(workload_id)

    def touch_nodes(self, nodes: NodeChanges) -> None:
        """Mark the facts of added and changed nodes and the names of deleted nodes for publishing."""
        self._nodes.add(nodes)

    def touch_rows(self, pod_ids: Iterable[int]) -> None:
        """Mark the pods with these IDs and their workloads for publishing."""
        self._pods.update(pod_ids)

    def move(self, pods: Sequence[Pod], to: State, **columns: Any) -> None:
        """Move pods to the state `to` and set `columns`.

        Raises: Conflict if the state of a pod does not permit the move.
        """
        self.move_rows([pod.pk for pod in pods], to, **columns)

    def move_rows(self, pod_ids: Sequence[int], to: State, **columns: Any) -> None:
        """Move the pods with these IDs, as `move` does."""
        if not pod_ids:
            return
        moved = move_rows(pod_ids, to, **columns)
        if moved != len(pod_ids):
            text = "{n} of {m} pods can no longer change to {state}"
            raise Conflict(Message(text, n=len(pod_ids) - moved, m=len(pod_ids), state=to.value))
        if to is State.CANCELLED:
            self.end_nominations(pod_ids, Message("the pod was deleted"))
        self._has_moved = True
        self._has_reports = self._has_reports or to in _REPORTABLE
        self.touch_rows(pod_ids)

    def reserve(
        self, reserved_pods: Sequence[ReservedPod], epoch: int, events: frozenset[Event] = frozenset({Event.POD_PLACED})
    ) -> None:
        """Reserve the resources of placed pods; the unique indexes enforce exclusivity.

        `events` are the events that these placements cause; pods with a matching queueing hint are requeued.
        Raises: IntegrityError if a resource is already reserved, or the shares of a GPU would exceed the whole GPU
        (1000 thousandths).
        """
        if reserved_pods:
            self.discard_decisions()
            self._requeue(*events)
        for reservation, reserved in zip(
            insert(self.cluster, reserved_pods, epoch, self.now), reserved_pods, strict=True
        ):
            self._loads[reserved.node_id].add(reservation.requests, reserved.gpu_milli)
            held = HeldResources(reservation.requests, reservation.allocation, reservation.created_at)
            self._nodes.held[reserved.node_id][reserved.spec.key] = held

    def discard_decisions(self) -> None:
        """Invalidate uncommitted decisions that were made on earlier revisions: their commit raises Conflict."""
        self.cluster.decisive_revision = self.cluster.revision
        self._columns.add("decisive_revision")

    def charge(self, spent: Mapping[str, float]) -> None:
        """Add the seconds `spent` on decisions, by namespace, to the stored decision time of the cluster."""
        self.cluster.decision_time = add_used_seconds(self.cluster.decision_time, spent, self.now.timestamp())
        self._columns.add("decision_time")

    def free(self, pods: Sequence[Pod], reason: str) -> None:
        """End the active reservations of these pods and free their resources."""
        if not pods:
            return
        for reservation in end([pod.pk for pod in pods], self.cluster, reason, self.now):
            self._loads[reservation.node_id].add(reservation.requests, reservation.gpu_milli, -1)
            self._nodes.held[reservation.node_id][reservation.pod.key] = None

    def end_nominations(self, pod_ids: Sequence[int], reason: str, *, with_gangs: bool = True) -> int:
        """End the nominations of these pods and drop their unsent evictions; return how many nominations ended.

        With `with_gangs`, the nominations that began together with these for members of their gangs end too, because a
        gang for which one member is missing might not start after the evictions.
        """
        ended = 0
        for pods in batched(pod_ids):
            active = Nomination.objects.filter(pod_id__in=pods, active=True)
            rows = list(active.values_list("id", "revision", "pod__namespace", "pod__gang"))
            if not rows:
                continue
            some = {pk for pk, *_ in rows}
            gangs = {(revision, namespace, gang) for _, revision, namespace, gang in rows if gang and with_gangs}
            for revision, namespace, gang in gangs:
                of_gang = nominations_of_gang(self.cluster.pk, revision, namespace, gang)
                some.update(of_gang.values_list("id", flat=True))
            wanted = Eviction.objects.filter(nomination_id__in=some, state=Eviction.WANTED)
            wanted.update(state=Eviction.DROPPED)
            ended += Nomination.objects.filter(pk__in=some).update(
                active=False, ended_revision=self.cluster.revision, ended_at=self.now, end_reason=reason
            )
        if ended:
            self.requeue()
        return ended

    def requeue(self) -> None:
        """Requeue the pods that wait for released resources; their back-off still applies."""
        self._requeue(Event.POD_RELEASED)

    def _requeue(self, *events: Event) -> None:
        requeue_pods(self.cluster, events, write=False)
        self._columns.add("event_revisions")

    # -- the end -------------------------------------------------------------------------------------------------

    def close(self, decisions: Sequence[Decision] = (), *, leaves_effects: bool = False) -> None:
        """Write and publish the results of the moves and reservations; pod counts may be published later.

        With `leaves_effects`, a transaction that neither moves pods nor changes facts or loads of nodes leaves the
        effects of earlier placements to a later transaction.
        """
        if not leaves_effects or self._has_moved or self._loads or self._nodes.has_changed_facts:
            decisions = [*self._write_placement_effects(), *decisions]
        if self._has_reports and self.cluster.kind == ClusterKind.KUBERNETES:
            dispatch.wake(self.cluster.pk, dispatch.REPORT)
        loaded = add_loads(self.cluster, self._loads) if self._loads else {}
        if loaded:
            self._columns.update(TOTALS)
        self._nodes.finish(loaded)
        if self._columns:
            write_columns([self.cluster], self._columns)
        workloads = self._settle_workloads()
        if not (self._nodes or workloads or decisions) and not counts_are_due(self.cluster.pk):
            return
        patches: dict[str, Patch | Callable[[], Patch]] = {
            workload_topic(workload.pk): partial(self._workload_patch, workload) for workload in workloads
        }
        tiles = self._nodes.tiles()
        patches |= self._nodes.patches()
        patches[cluster_topic(self.cluster)] = lambda: {**cluster_metrics_patch(self.cluster), "nodes": tiles}
        if decisions:
            patches[DECISIONS] = lambda: decisions_patch(self.cluster, decisions)
        publish_many(patches)

    def _write_placement_effects(self) -> list[Decision]:
        """Write the effects of placements that `record_placed_arrivals` committed; return the decisions to publish.

        The column `effects_due_since` of the locked cluster is the revision of the first placement without effects, so
        the effects of each placement are written exactly once.
        """
        since = self.cluster.effects_due_since
        if since is None:
            return []
        # Leave out the current revision: `reserve` has added the effects of this transaction's own reservations.
        placed, decisions = due_placements(self.cluster, since, self._decisive_revision)
        write_values(Pod, ("decision_id",), [(placement.decision_id, placement.pod_id) for placement in placed])
        pods_of: dict[str, int] = defaultdict(int)
        for placement in placed:
            self._loads[placement.node_id].add(placement.requests, placement.allocation.gpu_milli)
            self._nodes.held[placement.node_id].setdefault(
                f"{placement.namespace}/{placement.name}",
                HeldResources(placement.requests, placement.allocation, placement.created_at),
            )
            pods_of[placement.workload_id] += 1
        self.touch_rows(placement.pod_id for placement in placed)
        details = {"cluster": self.cluster.name, "policy": ""}
        record_many(
            SYSTEM, "workload.submit", [(("workload", key), "", {**details, "pods": n}) for key, n in pods_of.items()]
        )
        self._requeue(Event.POD_PLACED)
        self.cluster.effects_due_since = None
        self._columns.add("effects_due_since")
        # Return only as many decisions as the feed shows.
        if decisions is not None:
            return decisions[-LATEST:]
        latest = Decision.objects.filter(pk__in=sorted(placement.decision_id for placement in placed)[-LATEST:])
        return list(latest.defer("allocation", "reasons", "top", "evictions", "waits_for").order_by("id"))

    def _settle_workloads(self) -> list[Workload]:
        """Derive the state of every touched workload from its pods; return the touched workloads."""
        if not (self._pods or self._workloads):
            return []
        rows: list[Any] = WORKLOADS(pods=self._pods, workloads=self._workloads)
        states: dict[str, set[str]] = {row.pk: set(row.pod_states or ()) for row in rows}
        for workload_id, follows in _implied_states(rows).items():
            over = _FINISHED if follows.of_jobs else set()
            states[workload_id] = (states[workload_id] - over) | follows.states
        changed = [workload for workload in rows if self._settle(workload, workload_state(states[workload.pk]))]
        write_columns(changed, ("state", "history", "decided_at", "finished_at", "revision"))
        enqueue_deliveries(self.cluster, changed, self.now, has_webhooks=any(row.has_webhooks for row in changed))
        return rows

    def _workload_patch(self, workload: Workload) -> Patch:
        return {**workload_head(workload), "pods": self._pod_documents.get(workload.pk, {})}

    @cached_property
    def _pod_documents(self) -> dict[str, dict[str, Any]]:
        """Return the documents of the touched pods, by workload and key."""
        found: dict[str, dict[str, Any]] = defaultdict(dict)
        for workload_id, key, document in pod_documents(self._pods):
            found[workload_id][key] = document
        return found

    def _settle(self, workload: Workload, state: State) -> bool:
        if workload.state == state.value:
            return False
        workload.state = state.value
        workload.revision += 1
        first, later = workload.history[:1], workload.history[1:]
        # Keep the first state, with the time of the submission: a binding that is refused every 10 s adds two states.
        workload.history = [*first, *later[2 - MOST_STATES :], [state.value, rfc3339(self.now)]]
        if workload.decided_at is None and state is not State.PENDING:
            workload.decided_at = self.now
        workload.finished_at = self.now if state in FINISHED else None
        return True


# Workload states implied by the states of submitted objects: `_ALWAYS` applies to every workload, `_WITHOUT_PODS` only
# to workloads without pods.
_ALWAYS = {SubmittedObject.WANTED: State.PENDING, SubmittedObject.REFUSED: State.MISCONFIGURED}
_WITHOUT_PODS = {SubmittedObject.UNWANTED: State.PENDING, SubmittedObject.GONE: State.CANCELLED}


# Workload states implied by Jobs in a live cluster; they replace the states of finished pods.
_FINISHED = {state.value for state in FINISHED}
_OF_JOBS = {
    SubmittedObject.ENDING: State.RUNNING,
    SubmittedObject.SUCCEEDED: State.SUCCEEDED,
    SubmittedObject.FAILED: State.FAILED,
}


class ImpliedStates(NamedTuple):
    """Workload states implied by the workload's objects in a live cluster.

    `of_jobs` is True if all objects are Jobs that ended or are ending. The states of the Jobs then determine the state
    of the workload, whatever the states of its finished pods.
    """

    states: set[str]
    of_jobs: bool


def _implied_states(workloads: Sequence[Any]) -> dict[str, ImpliedStates]:
    """Return the workload states implied by the workloads' objects in a live cluster, even before their pods arrive.

    `workloads` lists rows of `hot_statements.WORKLOADS`.
    """
    submitted = [row for row in workloads if row.object_states]
    if not submitted:
        return {}
    pods = Pod.objects.filter(workload__in=[row.pk for row in submitted]).order_by()
    counts = dict(pods.values_list("workload_id").annotate(Count("id")))
    found: dict[str, ImpliedStates] = {}
    for row in submitted:
        found[row.pk] = ImpliedStates(set(), set(row.object_states) <= _OF_JOBS.keys())
        count = counts.get(row.pk, 0)
        for state in row.object_states:
            follows = _ALWAYS.get(state) or (None if count else _WITHOUT_PODS.get(state))
            if state == SubmittedObject.MADE and count < row.pod_count:
                follows = State.PENDING
            if found[row.pk].of_jobs:
                follows = _OF_JOBS[state]
            if follows is not None:
                found[row.pk].states.add(follows.value)
    return found
