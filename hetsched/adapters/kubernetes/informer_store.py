"""Informer store: the objects of one API server, converted to contract types as they change.

The store reads objects with the same readers as files. For nodes, and for pods that must be reread when another object
changes, it keeps the JSON of the fields that are used. For objects that describe nodes or that pods refer to by name,
it keeps the raw text. The JSON of other pods is dropped after conversion. `take` returns the changes since its last
call: nodes that changed, or whose describing objects changed (up to five kinds, in any order of arrival), definitions
that pods refer to, and pods. An object that cannot be read is quarantined with the reason until it changes, without
effect on other objects, except that the pool of an unreadable ResourceSlice is incomplete. If an object that describes
a node is unreadable, the node is read without this object and has a problem that names it.
Invariant: the results of `take`, applied in order, give the same content as reading one list of all current objects.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from hetsched.adapters.objects.devices.reader import with_claims
from hetsched.adapters.objects.documents import Document
from hetsched.adapters.objects.fields import FieldView
from hetsched.adapters.objects.manifests import read_content
from hetsched.adapters.objects.pods import PodReader, ReferencedObjects
from hetsched.contracts.errors import InputError, Problem
from hetsched.contracts.message import shortened
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.devices import Devices
from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.objects.observed import Changes, ObservedPod, ObservedPolicy, Quarantined

from .api import Resource
from .observed_pods import observed_pod, runs
from .reflector import Deleted, Upserted
from .resources import (
    CLAIMS,
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
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
from .typed_objects import content_digest, decode_pod, node_fields, pod_fields

K = TypeVar("K")
_PROBLEM = "ObjectUnreadable"
_NODES_AT_ONCE = 500
# Parts of the definitions, which are reread separately: claims change with every pod, classes rarely.
_NAMES, _STORAGE, _DEVICES = "names", "storage", "devices"
_PART_OF = {
    **dict.fromkeys((VOLUMES, CLAIMS, STORAGE_CLASSES), _STORAGE),
    **dict.fromkeys((RESOURCE_SLICES, DEVICE_CLASSES, DEVICE_TAINT_RULES, RESOURCE_CLAIMS), _DEVICES),
}


class _UnboundPod(msgspec.Struct, frozen=True, gc=False):
    """A pod without a node: its uid and the digest of its content."""

    uid: str
    digest: int | None


class InformerStore:
    """Informer store for the objects of one cluster. `feed` and `take` are called by one thread."""

    def __init__(self) -> None:
        self.quarantined: dict[tuple[str, str], Quarantined] = {}
        self._nodes: dict[str, bytes] = {}
        self._describing: dict[str, dict[str, bytes]] = {}  # node -> kind of resource -> object
        # kind of definitions (values of `_PART_OF`) -> (resource, key) -> object
        self._defining: dict[str, dict[tuple[str, str], bytes]] = {}
        self._reports: dict[str, NodeReport] = {}
        self._boots: dict[str, str] = {}  # node -> the boot id that its kubelet reported last
        self._dirty: dict[str, None] = {}
        self._dirty_pods: dict[str, ObservedPod | None] = {}
        self._unbound: dict[str, _UnboundPod] = {}
        self._bound: set[str] = set()
        self._stopped: set[str] = set()
        self._redefined = {_NAMES, _STORAGE, _DEVICES}
        self._changed_claims: set[str] = set()  # keys of the ResourceClaims, which are reread one by one
        self._definitions = ClusterContent()
        self._reader = PodReader(ReferencedObjects.of(self._definitions))
        # Pods that refer to missing definitions; they are reread when definitions change.
        self._wanting: dict[str, bytes] = {}
        # Pending pods that name a policy; they are reread when the policy changes.
        self._by_policy: dict[str, tuple[str, bytes]] = {}
        self._dirty_policies: dict[str, bytes | None] = {}

    def feed(self, resource: Resource, event: Upserted | Deleted) -> None:
        """Apply one event of a reflector."""
        body = event.body if isinstance(event, Upserted) else None
        was_quarantined = self.quarantined.pop((resource.plural, event.key), None) is not None
        if resource is PODS:
            self._wanting.pop(event.key, None)
            self._by_policy.pop(event.key, None)
            self._dirty_pods.pop(event.key, None)  # the key is then re-inserted at the end, after earlier changes
            if body is None:
                self._note_end(event)
                self._dirty_pods[event.key] = None
                self._unbound.pop(event.key, None)
                self._bound.discard(event.key)
            else:
                self._read_pod(event.key, body)
        elif resource is NODES:
            fields = None if body is None else node_fields(body)
            # Skip heartbeats, which are most updates of a node and change no field that is read.
            if was_quarantined or fields is None or fields != self._nodes.get(event.key):
                _put(self._nodes, event.key, fields)
                self._dirty[event.key] = None
        elif resource is SCHEDULING_POLICIES:
            self._dirty_policies[event.key] = body
        elif resource in OF_NODES:
            _put(self._describing.setdefault(event.key, {}), _id(resource), body)
            self._dirty[event.key] = None
        else:
            part = _PART_OF.get(resource, _NAMES)
            _put(self._defining.setdefault(part, {}), (_id(resource), event.key), body)
            if resource is RESOURCE_CLAIMS:
                self._changed_claims.add(event.key)
            else:
                self._redefined.add(part)

    def only_binds(self, event: Upserted) -> bool:
        """Return whether an event only binds a pod or changes its status, compared with the last state returned."""
        known = self._unbound.get(event.key)
        if known is None or known.digest is None or event.key in self._dirty_pods:
            return False
        try:
            return known.digest == content_digest(decode_pod(event.body))
        except (ValueError, RecursionError):
            return False

    def skip(self, event: Upserted) -> None:
        """Drop the stored state of a pending pod that is now bound, without reading the pod; requires `only_binds`."""
        self.quarantined.pop((PODS.plural, event.key), None)
        for kept in (self._wanting, self._by_policy, self._dirty_pods, self._unbound):
            kept.pop(event.key, None)

    def feed_skipped(self, event: Upserted) -> None:
        """Apply an event that was passed to `skip`, unless a newer one has arrived."""
        if event.key not in self._dirty_pods:
            self.feed(PODS, event)

    def take(self) -> Changes:
        """Return the changes since the last call and clear them."""
        changes = Changes()
        if self._redefined or self._changed_claims:
            changes.definitions = self._read_definitions()
        changes.pods_gone = [key for key, pod in self._dirty_pods.items() if pod is None]
        changes.pods = [pod for pod in self._dirty_pods.values() if pod is not None]
        self._dirty_pods = {}
        changes.bound, self._bound = self._bound, set()
        changes.stopped, self._stopped = self._stopped, set()
        present = [name for name in self._dirty if name in self._nodes]
        changes.rebooted.update(name for name in present if self._is_rebooted(name))
        changes.nodes_gone = [name for name in self._dirty if name not in self._nodes]
        self._dirty = {}
        for report in self._read_nodes(present):
            # Skip heartbeats, which are most updates of a node and do not change its report.
            if report != self._reports.get(report.name):
                self._reports[report.name] = report
                changes.nodes.append(report)
        for name in changes.nodes_gone:
            self._reports.pop(name, None)
            if not self._describing.get(name):
                self._describing.pop(name, None)
        return changes

    def take_policies(self) -> list[ObservedPolicy]:
        """Return the changed policies and clear them."""
        some, self._dirty_policies = self._dirty_policies, {}
        return [ObservedPolicy(key, gone=True) if body is None else _policy(key, body) for key, body in some.items()]

    def read_pods_of(self, policies: Collection[str]) -> None:
        """Reread the pending pods that name one of these policies.

        A pod that was read before its policy existed was refused and must be decided again.
        """
        for key, (policy, body) in list(self._by_policy.items()):
            if policy in policies and key not in self._dirty_pods:
                self._read_pod(key, body)

    # -- pods ----------------------------------------------------------------------------------------------------------

    def _read_pod(self, key: str, body: bytes) -> None:
        try:
            pod = decode_pod(body)
            root = FieldView(pod)
            spec = self._reader.pod(root)
            seen = self._dirty_pods[key] = observed_pod(root, spec)
        except (InputError, ValueError, RecursionError) as error:
            self._quarantine(PODS.plural, key, error)
            return
        if not seen.node_name:
            self._unbound[key] = _UnboundPod(seen.uid, content_digest(pod))
        elif (known := self._unbound.pop(key, None)) is not None and known.uid == seen.uid:
            self._bound.add(key)
        if spec is not None and spec.policy and not spec.node_name:
            self._by_policy[key] = spec.policy, pod_fields(body)
        if spec is not None and (spec.problems or (spec.gang is not None and not spec.gang.min_available)):
            self._wanting[key] = pod_fields(body)

    def _note_end(self, event: Upserted | Deleted) -> None:
        """Record a deleted pod whose containers are not running.

        A deletion without a readable last state is not recorded. The unreadable state is not quarantined: if no object
        of this name appears again, the quarantine entry would never be removed.
        """
        if event.body:
            with suppress(InputError, ValueError, RecursionError):
                root = FieldView(decode_pod(event.body))
                if not runs(root):
                    self._stopped.add(root.view("metadata").text("uid"))

    # -- names ---------------------------------------------------------------------------------------------------------

    def _read_definitions(self) -> ClusterContent | None:
        """Reread the definitions whose objects changed; return None if the result is unchanged."""
        parts, self._redefined = self._redefined, set()
        changed_claims, self._changed_claims = self._changed_claims, set()
        before = found = self._definitions
        if _NAMES in parts:
            found = msgspec.structs.replace(self._read(_NAMES), storage=before.storage, devices=before.devices)
        if _STORAGE in parts:
            found = msgspec.structs.replace(found, storage=self._read(_STORAGE).storage)
        if _DEVICES in parts:
            found = msgspec.structs.replace(found, devices=self._read(_DEVICES).devices)
        elif changed_claims:
            found = msgspec.structs.replace(found, devices=self._read_claims(found.devices, changed_claims))
        if found == before:
            return None
        self._definitions = found
        if _NAMES in parts:
            self._reader = PodReader(ReferencedObjects.of(found))
            wanting, self._wanting = self._wanting, {}
            for key, body in wanting.items():
                # also rereads pods of the current batch, which were read with the old definitions
                self._read_pod(key, body)
        return found

    def _read_claims(self, known: Devices, changed: Collection[str]) -> Devices:
        """Reread only the changed ResourceClaims: they change with every pod, the devices rarely."""
        read = self._read(_DEVICES, [(_id(RESOURCE_CLAIMS), key) for key in sorted(changed)])
        claims = {key: claim for key, claim in known.claims.items() if key not in changed}
        return with_claims(known, claims | read.devices.claims)

    def _read(self, part: str, only: Iterable[tuple[str, str]] | None = None) -> ClusterContent:
        """Read one part of the definitions, or `only` these objects, and quarantine unreadable objects."""
        known = self._defining.get(part, {})
        kept = dict(known) if only is None else {key: known[key] for key in only if key in known}
        while True:
            documents = [_document(kind, key, body) for (kind, key), body in kept.items()]
            unreadable_slices: list[InputError] = []
            try:
                content = read_content(documents, workload=False, unreadable_slices=unreadable_slices)
            except InputError as error:
                del kept[self._quarantine_rejected(error, kept)]
                continue
            for rejection in unreadable_slices:
                self._quarantine_rejected(rejection, kept)
            return content

    def _quarantine_rejected(self, error: InputError, among: Iterable[tuple[str, str]]) -> tuple[str, str]:
        """Quarantine the object that an error names, and return it; raise the error if it names none of `among`."""
        rejected = _rejected_object(error, among)
        if rejected is None:
            raise error
        self._quarantine(rejected[0].split(".")[0], rejected[1], error)
        return rejected

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def _read_nodes(self, names: Sequence[str]) -> Iterator[NodeReport]:
        """Read nodes and the objects that describe them, without the nodes that cannot be read.

        Nodes are read together, because `read_content` needs half of its time for each call. If an object is
        unreadable, the nodes are read one by one.
        """
        for start in range(0, len(names), _NODES_AT_ONCE):
            some = names[start : start + _NODES_AT_ONCE]
            parts = [(name, {_id(NODES): self._nodes[name], **self._describing.get(name, {})}) for name in some]
            documents = [_document(kind, name, body) for name, of_node in parts for kind, body in of_node.items()]
            try:
                reports = read_content(documents, workload=False).nodes
            except InputError:
                yield from filter(None, map(self._read_node, some))
            else:
                yield from (msgspec.structs.replace(report, source="api-server") for report in reports)

    def _read_node(self, name: str) -> NodeReport | None:
        """Read a node and the objects that describe it; return None if the node itself cannot be read."""
        kept = dict(self._describing.get(name, {}))
        problems: list[str] = []
        while True:
            parts = {_id(NODES): self._nodes[name], **kept}
            try:
                documents = [_document(kind, name, body) for kind, body in parts.items()]
                (report,) = read_content(documents, workload=False).nodes
            except InputError as error:
                culprit = _rejected_object(error, {(kind, name): body for kind, body in parts.items()})
                if culprit is None or culprit[0] == _id(NODES):
                    self._quarantine(NODES.plural, name, error)
                    return None
                self._quarantine(culprit[0].split(".")[0], name, error)
                problems.append(f"{_PROBLEM}: {culprit[0]}: {error.message}")
                del kept[culprit[0]]
                continue
            return msgspec.structs.replace(report, problems=(*report.problems, *problems), source="api-server")

    def _is_rebooted(self, name: str) -> bool:
        """Return whether a node reports a new boot id, which means that all its earlier processes have ended."""
        try:
            boot = FieldView(json.loads(self._nodes[name])).view("status").view("nodeInfo").text("bootID")
        except (InputError, ValueError, RecursionError):
            return False
        if not boot:
            return False
        before, self._boots[name] = self._boots.get(name, boot), boot
        return before != boot

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
    """Return an object as a document whose file name is its kind and key, so that errors identify the object.

    Items of a list have no kind and apiVersion; both are added here.
    """
    resource = _BY_ID[kind]
    plain = {**json.loads(body), "apiVersion": resource.api_version, "kind": resource.kind}
    return Document(f"{kind}/{key}", 1, plain)


def _rejected_object(error: InputError, among: Iterable[tuple[str, str]]) -> tuple[str, str] | None:
    """Return the object named by an error's place, or None if it is not in `among`."""
    place = (error.place or "").split("#", 1)[0]
    return next((key for key in among if f"{key[0]}/{key[1]}" == place), None)


def _policy(key: str, body: bytes) -> ObservedPolicy:
    """Read a policy with the file reader; an invalid policy gets a problem that names the invalid field."""
    meta = FieldView(json.loads(body)).view("metadata")
    policy = ObservedPolicy(key, meta.text("uid"), meta.integer("generation", 0))
    try:
        (spec,) = read_content([_document(_id(SCHEDULING_POLICIES), key, body)], workload=False).policies
    except (InputError, RecursionError) as error:
        code, place, message = _PROBLEM, "", str(error)
        if isinstance(error, InputError):
            code, place, message = error.code, error.place.partition(" ")[2], error.message
        return msgspec.structs.replace(policy, problem=Problem(code, place, shortened(message, 500)))
    return msgspec.structs.replace(policy, spec=spec)
