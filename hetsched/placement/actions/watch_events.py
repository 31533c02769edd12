"""Take in what a live cluster shows.

Problem: what we wrote, what others wrote and what the kubelets did come back as the same kind of event, late, doubled
or squeezed into one.
Rule: one transaction per batch of changes, under the epoch of the follower. A pod is known by its uid:
    not seen before, no node     a workload of its controller, pending, if its scheduler's name is ours
    not seen before, on a node   charged to that node, whoever put it there, as soon as that node is seen
    waiting                      what it asks for by now: gates go, groups and classes come
    ours, now on a node          bound, if it is where we put it; else it is charged where it is
    phase                        running; succeeded or failed, with the container that ended it; who fails while being
                                 deleted was ended by that, and is cancelled, as soon as its kubelet says so
    refused by its node          its owner's next pods stay away from there for a while
    gone, or replaced by a uid   cancelled; what it held is kept for a while unless nothing of it ran at the last
    only being deleted           nothing: it holds what it holds until it is proved to be gone
What ends frees exactly what it held, in the transaction that ends it.
Invariants: nothing is freed without proof of absence; a repeated event changes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import msgspec
from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from hetsched.adapters.oci.facts import without_facts
from hetsched.contracts.allocation import EMPTY, Allocation
from hetsched.contracts.observed import Changes, ContainerEnd, ObservedPod
from hetsched.contracts.workload import PodSpec, is_ours
from hetsched.engine.cluster.state import ClusterState
from hetsched.inventory.actions import cluster_topic, node_topic
from hetsched.inventory.fact_conflicts import doubt_patches
from hetsched.inventory.ledger import Conflict, advance
from hetsched.inventory.models import Cluster, Connection, Node
from hetsched.inventory.node_events import follow_nodes, forget_gone
from hetsched.inventory.signals import inventory_changed
from hetsched.inventory.tiles import node_facts, node_load, tile, without_nulls
from hetsched.journal import counters, figures
from hetsched.journal.audit import SYSTEM
from hetsched.journal.publish import publish_many
from hetsched.placement import dispatch
from hetsched.placement.bookings import Booked
from hetsched.placement.lifecycle import HOLDING, LISTED, LIVE, State
from hetsched.placement.models import Pod
from hetsched.placement.pod_counts import cluster_figures
from hetsched.storage.batches import parts
from hetsched.storage.bulk_rows import insert
from hetsched.storage.prepared_queries import Among, Given, Prepared

from .change import Change
from .displaced_pods import make_way
from .evictions import tell_who_left, wake_nominees
from .kubelet_rejections import note_refused, note_running
from .live_submissions import ask_about, join
from .shadow_decisions import note
from .submissions import prepare, take_in
from .terminating_pods import held_by, keep_remnants


class Followed(msgspec.Struct, frozen=True):
    """What a batch came to: how many pods were taken in, charged, moved on and ended; the revision it was written at.

    `arrivals_only`: nothing else came of it, so that a state of the revision before is one of this revision too.
    """

    arrived: int = 0
    charged: int = 0
    moved: int = 0
    ended: int = 0
    revision: int = 0
    arrivals_only: bool = False


def follow(cluster_id: int, changes: Changes, *, epoch: int, state: ClusterState | None = None) -> Followed:
    """Write a batch of changes by the follower of `epoch`; `state` says which cards unbooked pods are charged with.

    Raises: Conflict when another follower took over, or somebody moved a pod at the same moment.
    """
    try:
        return _follow(cluster_id, changes, epoch, state)
    except IntegrityError as error:
        raise Conflict(f"cluster {cluster_id}: {error}") from error


def _follow(cluster_id: int, changes: Changes, epoch: int, state: ClusterState | None) -> Followed:
    with transaction.atomic():
        cluster = advance(cluster_id)
        connection = _FOLLOWED.first(cluster=cluster_id, epoch=epoch)
        if connection is None:
            counters.add(figures.STALE_EPOCHS, cluster.name)
            raise Conflict(f"cluster {cluster_id} is followed by somebody else")
        nodes, events = follow_nodes(cluster, changes)
        if events:
            inventory_changed.send(sender=Cluster, cluster=cluster, events=events)
        batch = _Batch(cluster, state)
        if cluster.layout_revision == cluster.revision:
            batch.charge_early()
        batch.take(changes)
        followed = batch.write()
        if connection.shadow_of and changes.bound:
            note(cluster, connection.shadow_of, [seen for seen in batch.charged if seen.key in changes.bound])
        _tell_doubts(cluster, batch.doubted)
        among = None if nodes or changes.nodes_gone else batch.left
        forgotten = (among is None or bool(among)) and forget_gone(cluster, among)
        if nodes or changes.nodes_gone or forgotten:
            _tell_nodes(cluster, nodes, changes.nodes_gone)
        dispatch.wake(cluster_id)
        if changes.definitions is not None:
            dispatch.wake(cluster_id, dispatch.BIND)  # claims that pods wait for may be bound by now
    only = followed.arrivals_only and not (nodes or events or changes.nodes_gone or changes.definitions)
    return msgspec.structs.replace(followed, arrivals_only=only)


_FOLLOWED = Prepared(lambda: Connection.objects.filter(cluster=Given("cluster"), follower_epoch=Given("epoch")))
_ASKED = ("spec", "policy", "policy_rule", "priority", "gang", "queued", "images_until", "message")
# Every pod that is bound goes this way; several events may come as one.
_WAY = (State.PLACED, State.BINDING, State.BOUND, State.RUNNING)


_NODE_IDS = Prepared(
    lambda: Node.objects.filter(cluster=Given("cluster"), name__in=Among("names", str)).values_list("name", "id")
)


class _Batch:
    """The pods of one batch, sorted by what becomes of them."""

    def __init__(self, cluster: Cluster, state: ClusterState | None) -> None:
        self.cluster = cluster
        self.state = state
        self.change = Change(cluster)
        self.steps: dict[State, list[Pod]] = {step: [] for step in (*_WAY, State.SUCCEEDED, State.FAILED)}
        self.over: dict[str, list[Pod]] = defaultdict(list)
        self.messages: dict[str, list[Pod]] = defaultdict(list)
        self.refused: list[tuple[Pod, ObservedPod]] = []
        self.doubted: list[Node] = []
        self.charged: list[ObservedPod] = []
        self.arriving: list[ObservedPod] = []
        self.waiting: dict[int, tuple[Pod, ObservedPod]] = {}
        self.absent: list[Pod] = []
        self.stopped: set[str] = set()
        self.left: set[int] = set()  # the nodes on which pods ended

    def take(self, changes: Changes) -> None:
        """Sort the changes; nothing is written yet."""
        self.stopped = changes.stopped
        known = _known(self.cluster, [*(pod.key for pod in changes.pods), *changes.pods_gone])
        for key in changes.pods_gone:
            if key in known:
                self.over["deleted in the cluster"].append(known[key])
                self.absent.append(known[key])
        for seen in changes.pods:
            row = known.get(seen.key)
            if row is not None and row.uid != seen.uid:
                self.over["replaced by another pod of this name"].append(row)
                self.absent.append(row)
                row = None
            if row is None:
                self._arrive(seen)
            else:
                self._follow(row, seen)

    def _arrive(self, seen: ObservedPod) -> None:
        if seen.spec is None:
            return
        if seen.node_name:
            self.charged.append(seen)
        elif is_ours(seen.scheduler_name) and not seen.deleting:
            self.arriving.append(seen)

    def _follow(self, row: Pod, seen: ObservedPod) -> None:
        state = State(row.state)
        if state not in HOLDING:
            if seen.node_name and not seen.ended:
                self.over[f"bound to {seen.node_name} by somebody else"].append(row)
                self._arrive(seen)
            elif seen.ended or seen.deleting:
                self.over[seen.reason or "ended before it was placed"].append(row)
            elif seen.spec is not None:
                self.waiting[row.pk] = row, seen
            return
        if seen.node_name and (row.node is None or row.node.name != seen.node_name):
            self.over[f"bound to {seen.node_name} by somebody else"].append(row)
            if not seen.ended:
                self._arrive(seen)
            return
        if not seen.node_name:
            if seen.ended or (seen.deleting and state is State.PLACED):
                self.over[seen.reason or "ended before it was bound"].append(row)
            return
        reached = State.RUNNING if seen.phase == "Running" else State.BOUND
        for step in _WAY[_WAY.index(state) + 1 : _WAY.index(reached) + 1]:
            self.steps[step].append(row)
        if seen.refusal is not None and row.origin in Pod.OURS:  # others choose by what they know
            self.refused.append((row, seen))
        if seen.deleting and seen.ended == State.FAILED:
            self.over["deleted in the cluster"].append(row)
        elif seen.ended:
            self.steps[State(seen.ended)].append(row)
            self.messages[_how_it_ended(seen)].append(row)
        elif row.message != (told := _what_it_waits_for(seen)):
            self.messages[told].append(row)

    def write(self) -> Followed:
        """Move, free, charge and submit; return what it came to."""
        self._ask_anew()
        change = self.change
        for step in _WAY[1:]:
            if self.steps[step]:
                columns = {"started_at": change.now} if step is State.RUNNING else {}
                change.move(self.steps[step], step, **columns)
        ended = [*self.steps[State.SUCCEEDED], *self.steps[State.FAILED]]
        cancelled = [row for rows in self.over.values() for row in rows]
        self.left = {row.node_id for row in (*ended, *cancelled) if row.node_id is not None}
        left = held_by(row for row in self.absent if row.uid not in self.stopped)
        change.free(ended, "the pod ended")
        change.free([row for row in cancelled if State(row.state) in HOLDING], "the pod is gone")
        for end in (State.SUCCEEDED, State.FAILED):
            change.move(self.steps[end], end, queued=False, finished_at=change.now)
        for message, rows in self.messages.items():
            for some in parts([row.pk for row in rows]):
                Pod.objects.filter(pk__in=some).update(message=message)
            change.touch(rows)
        refused = {row.pk for row, _ in self.refused}
        runs = [row for row in self.steps[State.RUNNING] if row.pk not in refused]
        ask_about(self.cluster, [*ended, *cancelled])
        self.doubted = [*note_refused(change, self.refused), *note_running(change, runs)]
        for reason, rows in self.over.items():
            change.move(rows, State.CANCELLED, queued=False, finished_at=change.now, message=reason)
        keep_remnants(change, left)
        charged = self._charge()
        arrived = len(self.arriving)
        self.arriving = join(change, self.arriving)
        if ended or cancelled:
            over = [row.pk for row in (*ended, *cancelled)]
            tell_who_left(over)
            wake_nominees(over)
            change.requeue()
        self._submit()
        change.close()
        moved = sum(len(rows) for rows in self.steps.values()) - len(ended)
        ends = len(ended) + len(cancelled)
        only = not (charged or moved or ends or self.waiting or self.refused or self.messages)
        return Followed(arrived, charged, moved, ends, self.cluster.revision, only)

    def _ask_anew(self) -> None:
        """Take in what waiting pods ask for by now: gates go, groups and classes come."""
        for some in parts(sorted(self.waiting)):
            rows = Pod.objects.filter(pk__in=some, origin=Pod.WATCHED)
            for pk, before, policy in rows.values_list("pk", "spec", "workload__policy"):
                row, seen = self.waiting[pk]
                if seen.spec is None or without_facts(seen.spec) == without_facts(before):
                    continue
                (now,) = prepare(self.cluster, [seen.spec], policy or "", None, Pod.WATCHED)
                if now.spec == before:
                    continue
                if row.state == State.MISCONFIGURED:  # it was given up, and is another pod to us by now
                    self.over["it asks for something else by now"].append(row)
                    self._arrive(seen)
                    continue
                asked = {name: getattr(now, name) for name in _ASKED}
                Pod.objects.filter(pk=pk).update(**asked, attempts=0, not_before=None)
                self.change.end_nominations([pk], "it asks for something else by now")
                self.change.touch([row])

    def _charge(self) -> int:
        """Book pods where somebody else put them."""
        node_ids = self._nodes(seen.node_name for seen in self.charged)
        pods = []
        for seen in self.charged:
            assert seen.spec is not None
            # Anybody can write an annotation: what a pod holds is what we booked, else what it asks for.
            spec = msgspec.structs.replace(seen.spec, allocation=None)
            node_id = node_ids.get(seen.node_name)
            pods.append(Pod.charged(self.cluster, spec, node_id, self._taken(spec), self.change.now))
        insert(pods)
        booked = [Booked(pod.pk, pod.node_id, pod.spec, pod.allocation or EMPTY) for pod in pods if pod.node_id]
        self.change.book(booked, self.cluster.leader_epoch)
        if booked:
            make_way(self.change, {one.node_id for one in booked}, by=_named(pods))
        return len(pods)

    def charge_early(self) -> None:
        """Book pods that were seen before their node was."""
        homeless = Pod.objects.filter(cluster=self.cluster, origin=Pod.IMPORTED, node=None, state=State.RUNNING.value)
        early = list(homeless)
        node_ids = self._nodes(pod.spec.node_name for pod in early)
        booked = []
        for pod in early:
            node_id = node_ids.get(pod.spec.node_name)
            if node_id is not None:
                held = self._taken(pod.spec) or EMPTY
                Pod.objects.filter(pk=pod.pk).update(node_id=node_id, allocation=held)
                booked.append(Booked(pod.pk, node_id, pod.spec, held))
        self.change.book(booked, self.cluster.leader_epoch)

    def _nodes(self, names: Iterable[str]) -> dict[str, int]:
        wanted = set(names)
        return dict(_NODE_IDS(cluster=self.cluster.pk, names=wanted)) if wanted else {}

    def _taken(self, spec: PodSpec) -> Allocation | None:
        """Return what the pod takes on its node as the ledger completes it: the lowest cards with room."""
        if self.state is None or (spec.shape.gpu is None and not spec.shape.guaranteed):
            return EMPTY
        row = self.state.row_of.get(spec.node_name)
        if row is None or spec.key in self.state.bookings:
            return EMPTY
        return self.state.assume(self.state.compile(spec), row).allocation

    def _submit(self) -> None:
        """Make workloads of new pods of ours, one for each controller."""
        groups: dict[tuple[str, str], list[PodSpec]] = defaultdict(list)
        for seen in self.arriving:
            assert seen.spec is not None
            groups[seen.namespace, seen.spec.controller or seen.name].append(seen.spec)
        take_in(self.cluster, groups.values(), actor=SYSTEM, told=False)


def _known(cluster: Cluster, keys: Iterable[str]) -> dict[str, Pod]:
    """Return the pods of these keys that are not over, with their nodes; a live one hides one that was given up."""
    wanted = set(keys)
    if not wanted:
        return {}
    names: dict[str, list[str]] = defaultdict(list)
    for namespace, _, name in (key.partition("/") for key in wanted):
        names[namespace].append(name)
    found: dict[str, Pod] = {}
    for rows in (_GIVEN_UP, _LIVE):
        for namespace, some in names.items():
            known = rows(cluster=cluster.pk, namespace=namespace, names=some)
            found.update((pod.key, pod) for pod in sorted(known, key=attrgetter("pk")))
    return found


def _of_names(**states: Any) -> QuerySet[Pod]:
    rows = Pod.objects.filter(cluster=Given("cluster"), namespace=Given("namespace"), name__in=Among("names", str))
    return rows.filter(**states).select_related("node").defer("spec", "node__report").order_by()


_LIVE = Prepared(lambda: _of_names(state__in=sorted(state.value for state in LIVE)))
_GIVEN_UP = Prepared(lambda: _of_names(state=State.MISCONFIGURED.value, origin=Pod.WATCHED).filter(state__in=LISTED))


def _named(pods: Sequence[Pod]) -> str:
    """Name the first few of some pods."""
    more = f" and {len(pods) - 3} more" if pods[3:] else ""
    return ", ".join(pod.key for pod in pods[:3]) + more


def _how_it_ended(seen: ObservedPod) -> str:
    """Say by which container and how a pod failed, and why the pod did where somebody else ended it."""
    end: ContainerEnd | None = seen.end
    of_pod = ": ".join(text for text in (seen.reason, seen.message) if text)
    if end is None:
        return of_pod[:1000]
    told = f"container {end.container} ended with exit code {end.exit_code}"
    told = f"{told} ({end.reason})" if end.reason else told
    return f"{told}; {of_pod}"[:1000] if of_pod else told


def _what_it_waits_for(seen: ObservedPod) -> str:
    """Say which container of a bound pod does not start, empty where none is in trouble."""
    if seen.wait is None:
        return ""
    wait = seen.wait
    return f"container {wait.container} waits: {wait.reason}{': ' if wait.message else ''}{wait.message}"[:1000]


def _tell_doubts(cluster: Cluster, nodes: Sequence[Node]) -> None:
    """Tell which facts of nodes are in doubt by now."""
    if nodes:
        publish_many(doubt_patches(cluster, nodes))


def _tell_nodes(cluster: Cluster, nodes: Sequence[Node], gone: Sequence[str]) -> None:
    """Tell the facts of changed nodes, and that others are no more."""
    tiles = {node.name: tile(node) for node in nodes}
    left = set(gone) - set(Node.objects.filter(cluster=cluster, name__in=gone).values_list("name", flat=True))
    for node in nodes:
        node.cluster = cluster
    patches = {node_topic(cluster, node.name): without_nulls({**node_facts(node), **node_load(node)}) for node in nodes}
    everything = {**tiles, **dict.fromkeys(left)}
    publish_many({**patches, cluster_topic(cluster): lambda: {**cluster_figures(cluster), "nodes": everything}})
