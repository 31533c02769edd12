"""The history of pods and resource claims on an API server, and an independent check of each binding in it.

Resource versions are revisions of etcd: they order all objects, and a watch reports the objects of a kind in this
order. If a pod was created after a change of another pod, the scheduler has received the change before it decides the
new pod. A binding is therefore correct only if the pod fits its node in a state between its creation and its binding.
Changes of other kinds count from a `mark`, after the scheduler has stored them.
The charge of a resized pod follows Kubernetes (`component-helpers/resource`): the maximum of the request and of the
amounts that the kubelet allocated and set; without the request while the resize is infeasible.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from hetsched.adapters.kubernetes.api import Api, Resource
from hetsched.adapters.kubernetes.reflector import Deleted, Reflector, Upserted
from hetsched.adapters.kubernetes.resources import PODS, RESOURCE_CLAIMS

Json = dict[str, Any]
HOSTNAME = "kubernetes.io/hostname"
_ENDED = ("Succeeded", "Failed")


class State(NamedTuple):
    """A pod from a revision on; `cpu` is its charge in thousandths, 0 once it has ended."""

    revision: int
    node: str
    cpu: int
    labels: dict[str, str]


class Period(NamedTuple):
    """The revisions between which a place (a device as `pool/device`, or a node) refuses new pods for a reason."""

    place: str
    reason: str
    first: int
    last: int | None = None


@dataclass
class PodRecord:
    """All states of a pod: the first one is its creation."""

    name: str
    spec: Json
    states: list[State] = field(default_factory=list)
    deleted_at: int | None = None

    @property
    def created_at(self) -> int:
        return self.states[0].revision

    @property
    def binding(self) -> State | None:
        return next((state for state in self.states if state.node), None)

    def charge(self, revision: int) -> State | None:
        """Return the state at a revision, or the state of a later binding; None if the pod is not on a node then."""
        bound = self.binding
        if bound is None or (self.deleted_at is not None and self.deleted_at <= revision):
            return None
        return next((state for state in reversed(self.states) if state.revision <= max(revision, bound.revision)), None)


@dataclass
class History:
    """Recorded pods by UID, allocations of devices, and periods in which places refuse new pods."""

    capacity: dict[str, int]  # thousandths of CPUs by node
    zones: dict[str, str] = field(default_factory=dict)  # by node
    pods: dict[str, PodRecord] = field(default_factory=dict)
    given: list[tuple[int, str, tuple[str, ...]]] = field(default_factory=list)  # revision, claim, devices
    periods: list[Period] = field(default_factory=list)

    def add_pod(self, pod: Json, *, deleted: bool = False) -> None:
        meta = pod["metadata"]
        record = self.pods.setdefault(meta["uid"], PodRecord(meta["name"], pod["spec"]))
        if deleted:
            record.deleted_at = int(meta["resourceVersion"])
            return
        cpu = 0 if pod.get("status", {}).get("phase") in _ENDED else charged_cpu(pod)
        node = pod["spec"].get("nodeName", "")
        record.states.append(State(int(meta["resourceVersion"]), node, cpu, meta.get("labels", {})))

    def add_claim(self, claim: Json, *, deleted: bool = False) -> None:
        meta, allocation = claim["metadata"], claim.get("status", {}).get("allocation")
        results = allocation["devices"]["results"] if allocation and not deleted else ()
        devices = tuple(sorted(f"{result['pool']}/{result['device']}" for result in results))
        self.given.append((int(meta["resourceVersion"]), meta["name"], devices))

    # -- the check -----------------------------------------------------------------------------------------------------

    def bindings(self) -> int:
        return sum(record.binding is not None for record in self.pods.values())

    def charges(self) -> dict[str, int]:
        """Return the current charge of each node in thousandths of CPUs."""
        found = dict.fromkeys(self.capacity, 0)
        for record in self.pods.values():
            if record.deleted_at is None and (latest := record.states[-1]).node:
                found[latest.node] += latest.cpu
        return found

    def double_grants(self) -> list[str]:
        """Return pods that changed their node, nodes without room for a binding, and devices with two claims."""
        return [*self._moved_pods(), *self._full_nodes(), *self._shared_devices()]

    def wrong_places(self) -> list[str]:
        """Return bindings against required pod affinity, anti-affinity and topology spread, and in refusing periods."""
        return [*self._apart(), *self._uneven(), *self._refused()]

    def _moved_pods(self) -> Iterator[str]:
        for record in self.pods.values():
            nodes = list(dict.fromkeys(state.node for state in record.states if state.node))
            if len(nodes) > 1:
                yield f"{record.name} was bound to {nodes}"

    def _full_nodes(self) -> Iterator[str]:
        for record, bound, moments in self._decided():
            least = min(sum(state.cpu for _, state in self._others(record, bound, moment)) for moment in moments)
            own = record.states[0].cpu
            if least + own > self.capacity[bound.node]:
                yield f"{record.name} of {own}m on {bound.node}, which had {least}m of {self.capacity[bound.node]}m"

    def _apart(self) -> Iterator[str]:
        for record, bound, moments in self._decided():
            for term, wanted in _terms(record.spec):
                if not any(self._has(record, bound, moment, term) is wanted for moment in moments):
                    yield f"{record.name} on {bound.node}: {'no' if wanted else 'a'} pod with {term} was there"

    def _has(self, record: PodRecord, bound: State, moment: int, labels: dict[str, str]) -> bool:
        others = self._others(record, bound, moment)
        return any(labels.items() <= state.labels.items() for _, state in others)

    def _uneven(self) -> Iterator[str]:
        """Yield pods in a zone that had more matching pods than another zone, at any time of a possible decision.

        Pods that may have been decided, but were not bound, count only in the other zones.
        """
        for record, bound, moments in self._decided():
            for spread in record.spec.get("topologySpreadConstraints", ()):
                labels, own = spread["labelSelector"]["matchLabels"], self.zones[bound.node]
                if not any(self._is_even(record, bound, moment, labels, own) for moment in moments):
                    yield f"{record.name} in {own}: another zone had fewer pods with {labels}"

    def _is_even(self, record: PodRecord, bound: State, moment: int, labels: dict[str, str], own: str) -> bool:
        counts = dict.fromkeys(self.zones.values(), 0)
        for other in self.pods.values():
            there, state = other.binding, other.charge(moment)
            if other is record or there is None or state is None or not labels.items() <= state.labels.items():
                continue
            zone = self.zones[there.node]
            counts[zone] += there.revision <= moment if zone == own else other.created_at < bound.revision
        return all(count >= counts[own] for count in counts.values())

    def _decided(self) -> Iterator[tuple[PodRecord, State, list[int]]]:
        """Yield each bound pod, its state at the binding, and the revisions of the states that can have decided it."""
        for record in self.pods.values():
            bound = record.binding
            if bound is None:
                continue
            changes = {state.revision for other in self.pods.values() for state in other.states}
            changes |= {other.deleted_at for other in self.pods.values() if other.deleted_at is not None}
            moments = {revision for revision in changes if record.created_at <= revision < bound.revision}
            yield record, bound, sorted(moments)

    def _others(self, record: PodRecord, bound: State, moment: int) -> Iterator[tuple[PodRecord, State]]:
        """Yield the other pods on the node of a binding: those there at a moment, and those bound before it."""
        for other in self.pods.values():
            there = other.binding
            if other is record or there is None or there.node != bound.node or there.revision > bound.revision:
                continue
            state = other.charge(moment)
            if state is not None and state.cpu:
                yield other, state

    def _shared_devices(self) -> Iterator[str]:
        users: dict[str, str] = {}
        for _, claim, devices in sorted(self.given):
            users = {device: user for device, user in users.items() if user != claim or device in devices}
            for device in devices:
                if users.setdefault(device, claim) != claim:
                    yield f"{device} was given to {claim} while {users[device]} had it"

    def _refused(self) -> Iterator[str]:
        by_name = defaultdict(list)
        for revision, claim, devices in sorted(self.given):
            by_name[claim] += [(revision, device) for device in devices]
        for record in self.pods.values():
            bound = record.binding
            places = [*by_name[record.name], *([(bound.revision, bound.node)] if bound is not None else ())]
            for revision, place in places:
                yield from (
                    f"{record.name} was given {place} at {revision} within {period}"
                    for period in self.periods
                    if period.place == place
                    and period.first < record.created_at
                    and (period.last is None or revision <= period.last)
                    and period.reason not in _accepted(record.spec)
                )


def charged_cpu(pod: Json) -> int:
    """Return the CPU charge of a pod without init containers, in thousandths."""
    conditions = pod.get("status", {}).get("conditions") or ()
    pending = [each for each in conditions if each["type"] == "PodResizePending" and each["status"] == "True"]
    is_infeasible = any(each.get("reason") == "Infeasible" for each in pending)
    reports = {report["name"]: report for report in pod.get("status", {}).get("containerStatuses") or ()}
    total = 0
    for container in pod["spec"]["containers"]:
        report = reports.get(container["name"], {})
        reported = (report.get("allocatedResources"), (report.get("resources") or {}).get("requests"))
        amounts = [millis(found["cpu"]) for found in reported if found and "cpu" in found]
        wanted = millis(container["resources"]["requests"]["cpu"])
        total += max(amounts) if amounts and is_infeasible else max([wanted, *amounts])
    return total


def millis(quantity: str) -> int:
    return int(quantity[:-1]) if quantity.endswith("m") else round(1000 * float(quantity))


def _terms(spec: Json) -> Iterator[tuple[dict[str, str], bool]]:
    """Yield the labels of each required term per hostname, and whether a pod with them must be there."""
    for kind, wanted in (("podAffinity", True), ("podAntiAffinity", False)):
        terms = spec.get("affinity", {}).get(kind, {}).get("requiredDuringSchedulingIgnoredDuringExecution", ())
        yield from ((term["labelSelector"]["matchLabels"], wanted) for term in terms if term["topologyKey"] == HOSTNAME)


def _accepted(spec: Json) -> tuple[str, ...]:
    """Return the reasons of refusals that do not apply to a pod."""
    return () if spec.get("nodeSelector") else ("label",)


class Recorder:
    """Record the history of the pods and the claims of an API server, in a `with` statement."""

    def __init__(self, api: Api, capacity: dict[str, int], zones: dict[str, str]) -> None:
        self.history = History(capacity, zones)
        self._api, self._ended, self._lock = api, threading.Event(), threading.Lock()

    def __enter__(self) -> Self:
        for resource, add in ((PODS, self.history.add_pod), (RESOURCE_CLAIMS, self.history.add_claim)):
            threading.Thread(target=self._record, args=(resource, add), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _record(self, resource: Resource, add: Any) -> None:
        reflector = Reflector(
            self._api, resource, sleep=lambda seconds: (self._ended.wait(seconds), None)[1], ended=self._ended.is_set
        )
        for event in reflector.events():
            if self._ended.is_set():
                return
            if isinstance(event, Upserted | Deleted) and event.body:
                with self._lock:
                    add(json.loads(event.body), deleted=isinstance(event, Deleted))

    def mark(self) -> int:
        """Return the current revision of the API server."""
        listed = json.loads(self._api.get(PODS.path(namespace="default"), query={"limit": "1"}))
        return int(listed["metadata"]["resourceVersion"])

    def checked(self) -> tuple[list[str], list[str]]:
        """Return the double grants and the wrong places so far."""
        with self._lock:
            return self.history.double_grants(), self.history.wrong_places()

    def charges(self) -> dict[str, int]:
        """Return the current charge of each node in thousandths of CPUs."""
        with self._lock:
            return self.history.charges()

    def saw_all_deletions(self) -> bool:
        with self._lock:
            return all(record.deleted_at is not None for record in self.history.pods.values())

    def forget(self) -> None:
        """Forget all objects, after they were deleted."""
        with self._lock:
            self.history.pods.clear()
            self.history.given.clear()
            self.history.periods.clear()
