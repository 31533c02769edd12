"""Transitions of the pods of one batch of watch events.

A pod is identified by its uid:
    new, without a node      a pending pod in a workload of its controller, if its scheduler name is hetsched's
    new, on a node           reserved on that node, under any scheduler, as soon as the node is known
    pending                  its spec is updated: removed gates, new groups and classes
    holding                  its requests, labels and owner are updated; it is reserved again if they changed
    placed, now on a node    bound, if it is the node of the decision; else it is reserved on its actual node
    phase                    running; succeeded or failed, with the container that ended it. A pod that fails while
                             it is being deleted is cancelled as soon as its kubelet reports the failure
    rejected by its node     its owner's next pods back off from the node
    gone, or another uid     cancelled; its resources stay reserved for a while unless all its containers had stopped
    only being deleted       marked as terminating; it keeps its resources until there is proof of its absence
An ended pod frees exactly the resources that it held, in the transaction that ends it.
Invariants: nothing is freed without proof of absence; a repeated event changes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import chain

import msgspec

from hetsched.adapters.oci.facts import without_facts
from hetsched.contracts.message import Message, joined, verbatim
from hetsched.contracts.objects.observed import Changes, ContainerEnd, ObservedPod
from hetsched.contracts.objects.workload import PodSpec, is_ours
from hetsched.contracts.waits import Event
from hetsched.inventory.models import Cluster, Node
from hetsched.inventory.node_loads import ClusterColumns
from hetsched.journal.audit import SYSTEM
from hetsched.placement.in_place import fingerprint, updated_spec
from hetsched.placement.lifecycle import HOLDING, State
from hetsched.placement.models import Pod, Reservation
from hetsched.placement.models.reservations import IN_PLACE
from hetsched.placement.reservation_ledger import ReservedPod, counts_zone_memory, resized
from hetsched.storage.batches import batched
from hetsched.storage.bulk_rows import write_values
from hetsched.storage.hot_statements import KNOWN_PODS

from ..change import ClusterTransaction, write_messages
from ..evictions import mark_victims, requeue_nominees, requeue_nominees_of_uids
from ..gangs import recover_gangs_of
from ..kubelet_rejections import clear_rejections, record_rejections
from ..live_submissions import adopt_pods, request_job_reads
from ..submissions import accept_pods, build_pod_rows
from ..terminating_pods import orphaned_pods_on, reserve_orphaned_pods, terminating_reservations
from .displaced_pods import displace_pods
from .foreign_pods import charge_foreign_pods
from .pod_problems import pod_problem

# Pods in these states may return to the queue, so a change in place also updates their spec.
_NOT_BOUND = {State.PLACED.value, State.BINDING.value}
_SPEC_COLUMNS = ("spec", "policy", "policy_rule", "priority", "gang", "queued", "images_until", "message")
# The states of a running pod in order; if an event skips states, the pod passes through them too.
_PROGRESS = (State.PLACED, State.BINDING, State.BOUND, State.RUNNING)


class BatchOutcome(msgspec.Struct, frozen=True):
    """The outcome of a batch: how many pods were added, reserved, moved and ended, and the revision of the commit.

    `arrivals_only` is True if the batch only added pending pods and stored the claims that pods name. A state of the
    previous revision is then also valid at the revision of the commit.
    """

    arrived: int = 0
    charged: int = 0
    moved: int = 0
    ended: int = 0
    revision: int = 0
    arrivals_only: bool = False


class PodTransitions:
    """The pods of one batch, grouped by their transitions."""

    def __init__(self, cluster: Cluster, current: ClusterColumns) -> None:
        self.cluster = cluster
        self.current = current
        self.change = ClusterTransaction(cluster)
        self.steps: dict[State, list[Pod]] = {step: [] for step in (*_PROGRESS, State.SUCCEEDED, State.FAILED)}
        self.cancelled: dict[str, list[Pod]] = defaultdict(list)
        self.messages: dict[str, list[Pod]] = defaultdict(list)
        self.rejected: list[tuple[Pod, ObservedPod]] = []
        self.conflicted_nodes: list[Node] = []
        self.charged: list[ObservedPod] = []
        self.arrivals: list[ObservedPod] = []
        self.pending: dict[int, tuple[Pod, ObservedPod]] = {}
        self.changed_specs: list[tuple[Pod, PodSpec]] = []  # pods that changed in place, and their new specs
        self.named_claims: dict[int, tuple[Pod, str]] = {}  # pods that are not bound, and the claim in their status
        self.deleted: list[Pod] = []
        self.stopped_uids: set[str] = set()

    def sort(self, changes: Changes) -> None:
        """Group the pods by transition, without writing."""
        self.stopped_uids = changes.stopped
        known = _known_pods(self.cluster, [*(pod.key for pod in changes.pods), *changes.pods_gone])
        for key in changes.pods_gone:
            if key in known:
                self.cancelled["deleted in the cluster"].append(known[key])
                self.deleted.append(known[key])
        if changes.rebooted:
            self.cancelled["the node of the pod was restarted"] += orphaned_pods_on(self.cluster, changes.rebooted)
        for seen in changes.pods:
            row = known.get(seen.key)
            if row is not None and row.uid != seen.uid:
                self.cancelled["replaced by another pod of this name"].append(row)
                self.deleted.append(row)
                row = None
            if row is None:
                self._add_new(seen)
            else:
                self._sort_known(row, seen)

    def _add_new(self, seen: ObservedPod) -> None:
        if seen.spec is None:
            return
        if seen.node_name:
            self.charged.append(seen)
        elif is_ours(seen.scheduler_name) and not seen.deleting:
            self.arrivals.append(seen)

    def _sort_known(self, row: Pod, seen: ObservedPod) -> None:
        state = State(row.state)
        if state not in HOLDING:
            if seen.node_name and not seen.ended:
                self.cancelled[Message("bound to {node} by another scheduler", node=seen.node_name)].append(row)
                self._add_new(seen)
            elif seen.ended or seen.deleting:
                self.cancelled[verbatim(seen.reason) or Message("the pod ended before it was placed")].append(row)
            elif seen.spec is not None:
                self.pending[row.pk] = row, seen
            return
        if seen.node_name and (row.node is None or row.node.name != seen.node_name):
            self.cancelled[Message("bound to {node} by another scheduler", node=seen.node_name)].append(row)
            if not seen.ended:
                self._add_new(seen)
            return
        if not seen.node_name:
            if seen.ended or (seen.deleting and state is State.PLACED):
                self.cancelled[verbatim(seen.reason) or Message("the pod ended before it was bound")].append(row)
            else:
                self._record_changed_spec(row, seen)
                if seen.spec is not None and seen.spec.extended_claim:
                    self.named_claims[row.pk] = row, seen.spec.extended_claim
            return
        reached = State.RUNNING if seen.phase == "Running" else State.BOUND
        for step in _PROGRESS[_PROGRESS.index(state) + 1 : _PROGRESS.index(reached) + 1]:
            self.steps[step].append(row)
        # leave out pods of other schedulers, which do not follow hetsched's back-off
        if seen.refusal is not None and row.origin in Pod.OURS:
            self.rejected.append((row, seen))
        if seen.deleting and seen.ended == State.FAILED:
            self.cancelled["deleted in the cluster"].append(row)
            return
        if seen.ended:
            self.steps[State(seen.ended)].append(row)
            self.messages[_end_reason(seen)].append(row)
            return
        self._record_changed_spec(row, seen)
        if row.message != (message := pod_problem(seen)):
            self.messages[message].append(row)

    def _record_changed_spec(self, row: Pod, seen: ObservedPod) -> None:
        """Record a pod if its requests, labels or owner have changed."""
        if seen.spec is not None and row.fingerprint != fingerprint(seen.spec):
            self.changed_specs.append((row, seen.spec))

    def changed_keys(self) -> set[str]:
        """Return the keys of the pods that `write` would add or might change."""
        rows = chain(
            *self.steps.values(), *self.cancelled.values(), *self.messages.values(),
            (row for row, _ in (*self.rejected, *self.pending.values(), *self.changed_specs)),
            (row for row, _ in self.named_claims.values()),
        )  # fmt: skip
        return {row.key for row in rows} | {seen.key for seen in (*self.charged, *self.arrivals)}

    def write(self, *, leaves_effects: bool = False) -> BatchOutcome:
        """Move, free, reserve and submit the pods; return the outcome.

        `leaves_effects` is described in `ClusterTransaction.close`.
        """
        self._update_specs()
        self._update_named_claims()
        change = self.change
        for step in _PROGRESS[1:]:
            if self.steps[step]:
                columns = {"started_at": change.now} if step is State.RUNNING else {}
                change.move(self.steps[step], step, **columns)
        ended = [*self.steps[State.SUCCEEDED], *self.steps[State.FAILED]]
        cancelled = [row for rows in self.cancelled.values() for row in rows]
        remaining = terminating_reservations(row for row in self.deleted if row.uid not in self.stopped_uids)
        change.free(ended, Message("the pod ended"))
        change.free([row for row in cancelled if State(row.state) in HOLDING], Message("the pod was deleted"))
        for end in (State.SUCCEEDED, State.FAILED):
            change.move(self.steps[end], end, queued=False, finished_at=change.now)
        write_messages((message, row.pk) for message, rows in self.messages.items() for row in rows)
        change.touch(chain.from_iterable(self.messages.values()))
        refused = {row.pk for row, _ in self.rejected}
        runs = [row for row in self.steps[State.RUNNING] if row.pk not in refused]
        request_job_reads(self.cluster, [*ended, *cancelled])
        self.conflicted_nodes = record_rejections(change, self.rejected)
        if self.rejected or self.current.has_rejections:
            self.conflicted_nodes += clear_rejections(change, runs)
        for reason, rows in self.cancelled.items():
            change.move(rows, State.CANCELLED, queued=False, finished_at=change.now, message=reason)
        for reason, rows in self.cancelled.items():
            recover_gangs_of(
                change, [row for row in rows if row.state in _NOT_BOUND and row.origin in Pod.OURS], reason
            )
        reserve_orphaned_pods(change, remaining)
        charged = charge_foreign_pods(change, self.charged, displaces=self.current.has_displaceable_pods)
        self._reserve_again()
        arrived = len(self.arrivals)
        self.arrivals = adopt_pods(change, self.arrivals)
        if ended or cancelled:
            evicted = [row.pk for row in (*ended, *cancelled) if getattr(row, "has_evictions", True)]
            mark_victims(evicted)
            requeue_nominees(evicted)
            requeue_nominees_of_uids(self.cluster, [row.uid for row in cancelled if row.origin == Pod.REMNANT])
            change.requeue()
        self._create_workloads()
        change.close(leaves_effects=leaves_effects)
        moved = sum(len(rows) for rows in self.steps.values()) - len(ended)
        ends = len(ended) + len(cancelled)
        only = not (charged or moved or ends or self.pending or self.rejected or self.messages or self.changed_specs)
        return BatchOutcome(arrived, charged, moved, ends, self.cluster.revision, only)

    def _update_specs(self) -> None:
        """Update the specs of pending pods whose gates, pod groups or classes have changed."""
        for some in batched(sorted(self.pending)):
            rows = Pod.objects.filter(pk__in=some, origin=Pod.WATCHED)
            for pk, before, policy in rows.values_list("pk", "spec", "workload__policy"):
                row, seen = self.pending[pk]
                if seen.spec is None or without_facts(seen.spec) == without_facts(before):
                    continue
                (now,) = build_pod_rows(self.cluster, [seen.spec], policy or "", None, Pod.WATCHED)
                if now.spec == before:
                    continue
                if row.state == State.MISCONFIGURED:  # the verdict is final, so treat the corrected pod as a new pod
                    self.cancelled["the requests of the pod have changed"].append(row)
                    self._add_new(seen)
                    continue
                asked = {name: getattr(now, name) for name in _SPEC_COLUMNS}
                Pod.objects.filter(pk=pk).update(
                    **asked, fingerprint=fingerprint(now.spec), attempts=0, not_before=None
                )
                self.change.end_nominations([pk], Message("the requests of the pod have changed"))
                self.change.touch([row])

    def _update_named_claims(self) -> None:
        """Store the claims for the next decision, if the binding is refused. The reservations do not depend on them."""
        for some in batched(sorted(self.named_claims)):
            for pk, before in Pod.objects.filter(pk__in=some).values_list("pk", "spec"):
                spec = msgspec.structs.replace(before, extended_claim=self.named_claims[pk][1])
                if spec != before:
                    Pod.objects.filter(pk=pk).update(spec=spec)

    def _reserve_again(self) -> None:
        """Reserve changed pods again with their current requests and labels, even beyond a node's capacity."""
        change, reserved, events, grown = self.change, [], set[Event](), dict[int, str]()
        seen = {row.pk: (row, spec) for row, spec in self.changed_specs}
        for some in batched(sorted(seen)):
            reservations = Reservation.objects.filter(pod_id__in=some, active=True).select_related("pod")
            requests: dict[int, tuple[PodSpec, Reservation | None]] = {r.pod_id: (r.request, r) for r in reservations}
            missing = [pk for pk in some if pk not in requests]  # the nodes of these pods were not observed yet
            unreserved = Pod.objects.filter(pk__in=missing).values_list("pk", "spec") if missing else ()
            requests |= {pk: (spec, None) for pk, spec in unreserved}
            for pk, (before, reservation) in requests.items():
                row, spec = seen[pk]
                now = updated_spec(before, spec)
                if reservation is None or row.state in _NOT_BOUND:
                    Pod.objects.filter(pk=pk).update(spec=now)
                if reservation is not None and now != before:
                    allocation = reservation.allocation
                    if allocation.zones:
                        with_memory = counts_zone_memory(reservation.pod.policy)
                        allocation = resized(allocation, before, now, with_memory=with_memory)
                    reserved.append(ReservedPod(pk, reservation.node_id, now, allocation, changed=True))
                    if allocation != reservation.allocation:
                        Pod.objects.filter(pk=pk).update(allocation=allocation)
                    found = _events(before, now)
                    events |= found
                    if Event.POD_PLACED in found:
                        grown[reservation.node_id] = row.key
        write_values(Pod, ("fingerprint",), [(fingerprint(spec), pk) for pk, (_, spec) in seen.items()])
        rows = [seen[reserved_pod.pod_id][0] for reserved_pod in reserved]
        change.free(rows, IN_PLACE)
        change.reserve(reserved, self.cluster.leader_epoch, frozenset(events))
        change.touch(rows)
        for node_id, key in grown.items() if self.current.has_displaceable_pods else ():
            displace_pods(change, {node_id}, by=key)

    def _create_workloads(self) -> None:
        """Create workloads for hetsched's new pods, one for each controller."""
        groups: dict[tuple[str, str], list[PodSpec]] = defaultdict(list)
        for seen in self.arrivals:
            assert seen.spec is not None
            groups[seen.namespace, seen.spec.controller or seen.name].append(seen.spec)
        accept_pods(self.cluster, groups.values(), actor=SYSTEM, publishes=False)


def _events(before: PodSpec, now: PodSpec) -> set[Event]:
    """Return the events of a pod's change in place; a new label and a deletion change which selectors count the pod."""
    was, is_now = dict(before.shape.requests), dict(now.shape.requests)
    events = set()
    if any(is_now.get(name, 0) < amount for name, amount in was.items()):
        events.add(Event.POD_RELEASED)
    if any(was.get(name, 0) < amount for name, amount in is_now.items()):
        events.add(Event.POD_PLACED)
    if (before.labels, before.terminating) != (now.labels, now.terminating):
        events.add(Event.POD_LABELS)
    return events


def _known_pods(cluster: Cluster, keys: Iterable[str]) -> dict[str, Pod]:
    """Return the unfinished pods with these keys and their nodes; live pods have precedence over misconfigured ones."""
    wanted = set(keys)
    if not wanted:
        return {}
    names: dict[str, list[str]] = defaultdict(list)
    for namespace, _, name in (key.partition("/") for key in wanted):
        names[namespace].append(name)
    found: dict[str, Pod] = {}
    given_up = State.MISCONFIGURED.value
    for namespace, some in names.items():
        known: list[Pod] = KNOWN_PODS(cluster=cluster.pk, namespace=namespace, names=some, given_up=given_up)
        found.update((pod.key, pod) for pod in sorted(known, key=lambda pod: (pod.state != given_up, pod.pk)))
    return found


def _end_reason(seen: ObservedPod) -> str:
    """Return the message of an ended pod: the container that ended it, the exit code, and the pod's status reason."""
    end: ContainerEnd | None = seen.end
    of_pod = ": ".join(text for text in (seen.reason, seen.message) if text)
    if end is None:
        return verbatim(of_pod[:1000])
    message = Message("container {name} ended with exit code {n}", name=end.container, n=end.exit_code)
    if end.reason:
        message = Message("{detail} ({text})", detail=message, text=end.reason)
    return joined("; ", [message, of_pod[:1000]]) if of_pod else message
