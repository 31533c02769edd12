"""What an API server has, in our words, object by object as it changes.

Problem: one odd object must not stop the rest, and a node's facts come from four objects that arrive in any order.
Rule: objects are read by the very adapters that read files. Of what describes nodes and names things the raw text is
kept; pods are read and let go. `take` gives what changed since the last time: nodes whose own or describing objects
changed, names that pods refer to, pods. What cannot be read is quarantined under its reason until it changes; a node
whose describing object is odd is read without it, with a problem that says so.
Invariant: what `take` has given, folded over time, is what reading one list of everything would give.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import TypeVar

import msgspec

from hetsched.adapters.objects.documents import Document
from hetsched.adapters.objects.fields import View
from hetsched.adapters.objects.manifests import read_content
from hetsched.adapters.objects.pods import Names, PodReader
from hetsched.contracts.cluster import ClusterContent
from hetsched.contracts.errors import InputError, Problem
from hetsched.contracts.node_report import NodeReport
from hetsched.contracts.observed import Changes, ContainerEnd, ObservedPod, ObservedPolicy, Quarantined
from hetsched.contracts.workload import PodSpec

from .api import Resource
from .pod_failures import refusal, waiting
from .reflector import Gone, Seen
from .resources import (
    CLAIMS,
    DEVICE_CLASSES,
    NODES,
    OF_NODES,
    OPTIONAL,
    PODS,
    REQUIRED,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    SCHEDULING_POLICIES,
    STORAGE_CLASSES,
    VOLUMES,
)

K = TypeVar("K")
_ENDS = {"Succeeded": "succeeded", "Failed": "failed"}
_PROBLEM = "ObjectUnreadable"
# Names are read again part by part: claims come and change with every pod, classes hardly ever.
_NAMES, _STORAGE, _DEVICES = "names", "storage", "devices"
_PART_OF = {
    **dict.fromkeys((VOLUMES, CLAIMS, STORAGE_CLASSES), _STORAGE),
    **dict.fromkeys((RESOURCE_SLICES, DEVICE_CLASSES, RESOURCE_CLAIMS), _DEVICES),
}


class Mirror:
    """The objects of one cluster. One thread feeds and takes."""

    def __init__(self) -> None:
        self.quarantined: dict[tuple[str, str], Quarantined] = {}
        self._nodes: dict[str, bytes] = {}
        self._describing: dict[str, dict[str, bytes]] = {}  # node -> kind of resource -> object
        self._defining: dict[str, dict[tuple[str, str], bytes]] = {}  # by the part of the names that is read of them
        self._reports: dict[str, NodeReport] = {}
        self._dirty: dict[str, None] = {}
        self._dirty_pods: dict[str, ObservedPod | None] = {}
        self._unbound: dict[str, str] = {}  # pods without a node, with their uid
        self._bound: set[str] = set()
        self._stopped: set[str] = set()
        self._redefined = {_NAMES, _STORAGE, _DEVICES}
        self._definitions = ClusterContent()
        self._reader = PodReader(Names.of(self._definitions))
        # Pods that name what was not there when they were read are read again when names change.
        self._wanting: dict[str, bytes] = {}
        # Pods that name a policy and have no node: what the name means may change.
        self._by_policy: dict[str, tuple[str, bytes]] = {}
        self._dirty_policies: dict[str, bytes | None] = {}

    def feed(self, resource: Resource, event: Seen | Gone) -> None:
        """Take in one event of a reflector."""
        body = event.body if isinstance(event, Seen) else None
        self.quarantined.pop((resource.plural, event.key), None)
        if resource is PODS:
            self._wanting.pop(event.key, None)
            self._by_policy.pop(event.key, None)
            self._dirty_pods.pop(event.key, None)  # the latest news comes last
            if body is None:
                self._note_end(event)
                self._dirty_pods[event.key] = None
                self._unbound.pop(event.key, None)
                self._bound.discard(event.key)
            else:
                self._read_pod(event.key, body)
        elif resource is NODES:
            _put(self._nodes, event.key, body)
            self._dirty[event.key] = None
        elif resource is SCHEDULING_POLICIES:
            self._dirty_policies[event.key] = body
        elif resource in OF_NODES:
            _put(self._describing.setdefault(event.key, {}), _id(resource), body)
            self._dirty[event.key] = None
        else:
            part = _PART_OF.get(resource, _NAMES)
            _put(self._defining.setdefault(part, {}), (_id(resource), event.key), body)
            self._redefined.add(part)

    def pass_over(self, event: Seen) -> None:
        """Note that a pod is bound as this event tells, which says nothing else that anybody has to read."""
        self.quarantined.pop((PODS.plural, event.key), None)
        for kept in (self._wanting, self._by_policy, self._dirty_pods, self._unbound):
            kept.pop(event.key, None)

    def feed_late(self, event: Seen) -> None:
        """Take in what a pod was passed over with, unless there is later news of it."""
        if event.key not in self._dirty_pods:
            self.feed(PODS, event)

    def take(self) -> Changes:
        """Return what changed, and start anew."""
        changes = Changes()
        if self._redefined:
            changes.definitions = self._read_definitions()
        changes.pods_gone = [key for key, pod in self._dirty_pods.items() if pod is None]
        changes.pods = [pod for pod in self._dirty_pods.values() if pod is not None]
        self._dirty_pods = {}
        changes.bound, self._bound = self._bound, set()
        changes.stopped, self._stopped = self._stopped, set()
        for name in self._dirty:
            if name in self._nodes:
                report = self._read_node(name)
                # Most updates of a node are its heartbeat, which says nothing new.
                if report is not None and report != self._reports.get(name):
                    self._reports[name] = report
                    changes.nodes.append(report)
            else:
                self._reports.pop(name, None)
                changes.nodes_gone.append(name)
                if not self._describing.get(name):
                    self._describing.pop(name, None)
        self._dirty = {}
        return changes

    def take_policies(self) -> list[ObservedPolicy]:
        """Return the policies that changed, and start anew with them."""
        some, self._dirty_policies = self._dirty_policies, {}
        return [ObservedPolicy(key, gone=True) if body is None else _policy(key, body) for key, body in some.items()]

    def read_pods_of(self, policies: Collection[str]) -> None:
        """Read waiting pods again that name one of these policies: whoever came before it was refused."""
        for key, (policy, body) in list(self._by_policy.items()):
            if policy in policies and key not in self._dirty_pods:
                self._read_pod(key, body)

    # -- pods ----------------------------------------------------------------------------------------------------------

    def _read_pod(self, key: str, body: bytes) -> None:
        try:
            root = View(json.loads(body))
            spec = self._reader.pod(root)
            seen = self._dirty_pods[key] = _observed(root, spec)
        except (InputError, ValueError, RecursionError) as error:
            self._quarantine(PODS.plural, key, error)
            return
        if not seen.node_name:
            self._unbound[key] = seen.uid
        elif self._unbound.pop(key, "") == seen.uid:
            self._bound.add(key)
        if spec is not None and spec.policy and not spec.node_name:
            self._by_policy[key] = spec.policy, body
        if spec is not None and (spec.problems or (spec.gang is not None and not spec.gang.min_available)):
            self._wanting[key] = body

    def _note_end(self, event: Seen | Gone) -> None:
        """Note a pod of which nothing ran when it went; where only its absence was noticed, nobody knows.

        A last state that is odd says as little. It is not quarantined: nothing of this name may ever come again.
        """
        if event.body:
            with suppress(InputError, ValueError, RecursionError):
                root = View(json.loads(event.body))
                if not _runs(root):
                    self._stopped.add(root.view("metadata").text("uid"))

    # -- names ---------------------------------------------------------------------------------------------------------

    def _read_definitions(self) -> ClusterContent | None:
        """Read the names again whose objects changed; None where they mean what they meant."""
        parts, self._redefined = self._redefined, set()
        before = found = self._definitions
        if _NAMES in parts:
            found = msgspec.structs.replace(self._read(_NAMES), storage=before.storage, devices=before.devices)
        if _STORAGE in parts:
            found = msgspec.structs.replace(found, storage=self._read(_STORAGE).storage)
        if _DEVICES in parts:
            found = msgspec.structs.replace(found, devices=self._read(_DEVICES).devices)
        if found == before:
            return None
        self._definitions = found
        if _NAMES in parts:
            self._reader = PodReader(Names.of(found))
            wanting, self._wanting = self._wanting, {}
            for key, body in wanting.items():
                self._read_pod(key, body)  # those of this very batch too: they were read by the names before
        return found

    def _read(self, part: str) -> ClusterContent:
        """Read one part of the names, without what is odd."""
        kept = dict(self._defining.get(part, {}))
        while True:
            try:
                documents = [_document(kind, key, body) for (kind, key), body in kept.items()]
                return read_content(documents, workload=False)
            except InputError as error:
                odd = _culprit(error, kept)
                if odd is None:
                    raise
                self._quarantine(odd[0].split(".")[0], odd[1], error)
                del kept[odd]

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def _read_node(self, name: str) -> NodeReport | None:
        """Read a node with what describes it; None where the node itself cannot be read."""
        kept = dict(self._describing.get(name, {}))
        odd: list[str] = []
        while True:
            parts = {_id(NODES): self._nodes[name], **kept}
            try:
                documents = [_document(kind, name, body) for kind, body in parts.items()]
                (report,) = read_content(documents, workload=False).nodes
            except InputError as error:
                culprit = _culprit(error, {(kind, name): body for kind, body in parts.items()})
                if culprit is None or culprit[0] == _id(NODES):
                    self._quarantine(NODES.plural, name, error)
                    return None
                self._quarantine(culprit[0].split(".")[0], name, error)
                odd.append(f"{_PROBLEM}: {culprit[0]}: {error.message}")
                del kept[culprit[0]]
                continue
            return msgspec.structs.replace(report, problems=(*report.problems, *odd), source="api-server")

    def _quarantine(self, kind: str, key: str, error: Exception) -> None:
        code = error.code if isinstance(error, InputError) else _PROBLEM
        self.quarantined[kind, key] = Quarantined(kind, key, code, str(error)[:500])


def _id(resource: Resource) -> str:
    return f"{resource.plural}.{resource.group}"


_BY_ID = {_id(resource): resource for resource in (*REQUIRED, *OPTIONAL)}


def _put(table: dict[K, bytes], key: K, body: bytes | None) -> None:
    if body is None:
        table.pop(key, None)
    else:
        table[key] = body


def _document(kind: str, key: str, body: bytes) -> Document:
    """Return an object with its own place as the file name, so that an error leads back to it.

    Items of a list do not say what they are.
    """
    resource = _BY_ID[kind]
    plain = {**json.loads(body), "apiVersion": resource.api_version, "kind": resource.kind}
    return Document(f"{kind}/{key}", 1, plain)


def _culprit(error: InputError, among: Iterable[tuple[str, str]]) -> tuple[str, str] | None:
    """Return the object that an error names by its place."""
    place = (error.place or "").split("#", 1)[0]
    return next((key for key in among if f"{key[0]}/{key[1]}" == place), None)


def _policy(key: str, body: bytes) -> ObservedPolicy:
    """Read a policy as files are read; an odd one says what is wrong with which field."""
    meta = View(json.loads(body)).view("metadata")
    told = ObservedPolicy(key, meta.text("uid"), meta.integer("generation", 0))
    try:
        (spec,) = read_content([_document(_id(SCHEDULING_POLICIES), key, body)], workload=False).policies
    except (InputError, RecursionError) as error:
        code, place, message = _PROBLEM, "", str(error)
        if isinstance(error, InputError):
            code, place, message = error.code, error.place.partition(" ")[2], error.message
        return msgspec.structs.replace(told, problem=Problem(code, place, message[:500]))
    return msgspec.structs.replace(told, spec=spec)


def _observed(root: View, spec: PodSpec | None) -> ObservedPod:
    meta, status, wanted = root.view("metadata"), root.view("status"), root.view("spec")
    bound = bool(wanted.text("nodeName"))
    return ObservedPod(
        namespace=meta.text("namespace"),
        name=meta.text("name"),
        uid=meta.text("uid"),
        version=meta.text("resourceVersion"),
        scheduler_name=wanted.text("schedulerName"),
        node_name=wanted.text("nodeName"),
        phase=status.text("phase"),
        ended=_ENDS.get(status.text("phase"), ""),
        deleting="deletionTimestamp" in meta,
        reason=status.text("reason"),
        message=status.text("message"),
        end=_end(status),
        wait=waiting(status) if bound else None,
        refusal=refusal(status) if bound else None,
        spec=spec,
    )


def _runs(root: View) -> bool:
    """Tell whether a kubelet took the pod and not all of its containers have ended, sidecars included."""
    status = root.view("status")
    phase = status.text("phase")
    if phase in _ENDS or not (phase == "Running" or "startTime" in status):
        return False
    states = [container.view("state") for container in status.views("containerStatuses")]
    before = [container.view("state") for container in status.views("initContainerStatuses")]
    ended = bool(states) and all("terminated" in state for state in states)
    return not ended or any("running" in state for state in before)


def _end(status: View) -> ContainerEnd | None:
    """Return the first container that ended with a failure."""
    for group in ("initContainerStatuses", "containerStatuses"):
        for container in status.views(group):
            ended = container.view("state").view("terminated")
            code = ended.value.get("exitCode")
            if isinstance(code, int) and code != 0:
                return ContainerEnd(container.text("name"), code, ended.text("reason"), ended.text("message")[:1000])
    return None
