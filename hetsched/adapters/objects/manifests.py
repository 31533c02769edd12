"""Reader of Kubernetes objects into one `ClusterContent`.

The objects in a file refer to each other by name and may occur in any order. One invalid object makes the whole file
invalid. Objects that others refer to (classes, groups, namespaces) are read first, then nodes and pods. Objects that
describe a node (NodeGpu, NodeUsage, NodeMetrics, NodeResourceTopology) are joined to it by name; NodeUsage takes
precedence over NodeMetrics, and objects that describe an absent node are dropped. Other kinds are ignored, but objects
in a workload file that create pods and are not read are listed as omitted. Probable misspellings of fields, annotations
and kinds give warnings. The order of the file is kept. Objects with `generateName` get a suffix of letters derived from
their submission, or a number if there is no submission.
Source: the public contract, "Objects in"; Kubernetes API conventions, "Generated values".
Invariant: nothing is returned unless every object was read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from hetsched.adapters import metrics
from hetsched.adapters.gang_topology import topology_levels
from hetsched.adapters.gangs import group_name, native_pod_group, pod_group
from hetsched.adapters.wrong_fields import further_errors
from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError, without_path
from hetsched.contracts.message import Message
from hetsched.contracts.objects.cluster import (
    ClusterContent,
    DisruptionBudget,
    ElasticQuota,
    PodUsage,
    PriorityClass,
    RuntimeClass,
)
from hetsched.contracts.objects.devices import Devices
from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.objects.policy import PolicySpec
from hetsched.contracts.objects.storage import Storage
from hetsched.contracts.objects.workload import PodGroup, PodSpec
from hetsched.contracts.remedies import ADD_PLUGIN
from hetsched.contracts.type_remedies import field_of, remedy_for

from . import controllers, keys, node_gpus, node_topology, nodes, quotas_and_budgets, selectors, storage
from .devices.reader import DeviceReader
from .documents import Document
from .fields import FieldView, metadata
from .manifest_warnings import explains, manifest_warnings, with_misspelling
from .pod_fields import preempts
from .pods import PodReader, ReferencedObjects, namespace_of


def read_content(
    documents: Sequence[Document],
    *,
    workload: bool,
    known: ClusterContent | None = None,
    names: str = "",
    unreadable_slices: list[InputError] | None = None,
) -> ClusterContent:
    """Convert documents to cluster content; controllers are expanded to pods in a workload file only.

    `known` is a cluster with priority classes, runtime classes and pod groups that the pods may refer to. `names` is
    the seed of generated names. If `unreadable_slices` is given, errors of ResourceSlices are added to it instead of
    raised, and the pools of these slices are incomplete.

    Raises: InputError that names file, document, field path and reason, and lists the other wrong fields of a workload
    file; nothing is converted in that case.
    """
    try:
        content = _converted(documents, _Reading(workload, names, unreadable_slices), known)
    except InputError as error:
        if workload:
            error.further = further_errors(
                error, documents, lambda tried: _converted(tried, _Reading(workload, names), known).pending
            )
        raise error.with_warnings(
            warning
            for warning in manifest_warnings(documents, workload=workload, known=known)
            if not explains(error, warning)
        ) from None
    return msgspec.structs.replace(
        content, warnings=manifest_warnings(documents, workload=workload, known=known or content)
    )


def _converted(documents: Sequence[Document], reading: _Reading, known: ClusterContent | None) -> ClusterContent:
    for document in documents:
        reading.sort(document)
    own = reading.definitions(known)
    known_names = ReferencedObjects.of(own) if known is None else ReferencedObjects.of(known, own)
    reading.read_pods(PodReader(known_names))
    return msgspec.structs.replace(
        own,
        nodes=reading.read_nodes(),
        running=tuple(reading.running),
        pending=tuple(reading.pending),
        budgets=reading.read_budgets(),
        pod_usages=reading.read_pod_usages(),
        left_out=tuple(reading.left_out),
    )


def generated_name(stem: str, names: str, number: int) -> str:
    """Return the name of the object with this number (from 0) for this `generateName`.

    The name depends only on `names`, `stem` and `number`; if `names` is empty, the number is the suffix.
    """
    if not names:
        return f"{stem}{number}"
    digest = blake2b(f"{names}\0{stem}\0{number}".encode(), digest_size=_LETTERS_OF_NAME).digest()
    return stem[: _MOST_GENERATED - _LETTERS_OF_NAME] + "".join(_LETTERS[byte % len(_LETTERS)] for byte in digest)


class _Reading:
    """State of one `read_content` call: the objects grouped by the way they are read."""

    def __init__(self, workload: bool, names: str, unreadable_slices: list[InputError] | None = None) -> None:
        self._workload = workload
        self._names = names
        self._unreadable_slices = unreadable_slices
        self._sorted: dict[str, list[tuple[Document, FieldView]]] = {}
        self._seen: set[tuple[str, str, str]] = set()
        self._taken: set[str] = set()
        self._generated: dict[str, int] = {}
        self.running: list[PodSpec] = []
        self.pending: list[PodSpec] = []
        self.left_out: list[str] = []

    def sort(self, document: Document) -> None:
        kind, group = document.object["kind"], document.object["apiVersion"].rpartition("/")[0]
        if (kind, group) not in _READ:
            if self._workload and (kind, group) in _MADE_ELSEWHERE:
                with _WithLocation(document):
                    self.left_out.append(_name_of(document))
            return
        root = FieldView(document.object)
        with _WithLocation(document):
            if kind in _NAMESPACED:
                root = self._named(root)
            meta = metadata(root)
            key = (kind, namespace_of(meta) if kind in _NAMESPACED else "", meta.text("name"))
            if key in self._seen:
                meta.fail(
                    Message("two objects of kind {kind} have the name {name}", kind=kind, name=repr(key[2])),
                    "name",
                    code="ObjectDuplicate",
                    hint="Rename one of them",
                )
            self._seen.add(key)
        self._sorted.setdefault("Pods" if kind == "Pod" or kind in controllers.KINDS else kind, []).append(
            (document, root)
        )

    def _named(self, root: FieldView) -> FieldView:
        """Set the name of an object with `generateName`, as the API server would."""
        meta = root.view("metadata")
        stem = meta.text("generateName")
        if not stem or "name" in meta:
            return root
        number = self._generated[stem] = self._generated.get(stem, -1) + 1
        return FieldView({**root.value, "metadata": {**meta.value, "name": generated_name(stem, self._names, number)}})

    def _each(
        self, kind: str, read: Callable[[FieldView], Any], errors: list[InputError] | None = None
    ) -> dict[str, Any]:
        """Read all objects of a kind into a mapping from their names; errors are added to `errors` if it is given."""
        found = {}
        for document, root in self._sorted.get(kind, ()):
            try:
                with _WithLocation(document):
                    found[root.view("metadata").text("name")] = read(root)
            except InputError as error:
                if errors is None:
                    raise
                errors.append(error)
        return found

    def definitions(self, known: ClusterContent | None = None) -> ClusterContent:
        groups: dict[str, PodGroup] = {}
        for document, root in self._sorted.get("PodGroup", ()):
            with _WithLocation(document):
                meta = root.view("metadata")
                native = document.object["apiVersion"].startswith("scheduling.k8s.io/")
                name = group_name(meta.text("name")) if native else meta.text("name")
                read = native_pod_group if native else pod_group
                groups[f"{namespace_of(meta)}/{name}"] = read(root.view("spec"))
        for document, root in self._sorted.get("Workload", ()):
            with _WithLocation(document):
                meta = root.view("metadata")
                for group in root.view("spec").views("podGroups"):
                    name = group_name(f"{meta.text('name')}.{group.text('name')}")
                    groups[f"{namespace_of(meta)}/{name}"] = native_pod_group(group, "policy")
        return ClusterContent(
            policies=tuple(self._each("SchedulingPolicy", _policy).values()),
            namespaces=self._each("Namespace", lambda root: root.view("metadata").labels()),
            namespace_policies={
                name: policy for name, policy in self._each("Namespace", _namespace_policy).items() if policy
            },
            priority_classes=self._each("PriorityClass", _priority_class),
            runtime_classes=self._each("RuntimeClass", _runtime_class),
            pod_groups=groups,
            topologies=self._each("Topology", topology_levels),
            storage=self._storage(),
            devices=self._devices(known),
            quotas=self._quotas(),
        )

    def _storage(self) -> Storage:
        claims = {}
        for document, root in self._sorted.get("PersistentVolumeClaim", ()):
            with _WithLocation(document):
                claim = storage.volume_claim(root, namespace_of(root.view("metadata")))
                claims[claim.key] = claim
        volumes = self._each("PersistentVolume", storage.persistent_volume)
        return Storage(volumes, claims, self._each("StorageClass", storage.storage_class))

    def _devices(self, known: ClusterContent | None) -> Devices:
        reader = DeviceReader(None if known is None else known.devices)
        self._each("ResourceSlice", reader.pool, self._unreadable_slices)
        self._each("ResourceSlice", reader.slice, self._unreadable_slices)
        self._each("DeviceClass", reader.device_class)
        self._each("DeviceTaintRule", reader.taint_rule)
        for document, root in self._sorted.get("ResourceClaim", ()):
            with _WithLocation(document):
                reader.claim(root, namespace_of(root.view("metadata")))
        return reader.devices()

    def _quotas(self) -> tuple[ElasticQuota, ...]:
        found: dict[str, ElasticQuota] = {}
        for document, root in self._sorted.get("ElasticQuota", ()):
            with _WithLocation(document):
                quota = quotas_and_budgets.elastic_quota(root)
                if quota.namespace in found:
                    message = Message(
                        "namespace {namespace} already has a quota: {name}",
                        namespace=quota.namespace,
                        name=found[quota.namespace].name,
                    )
                    root.view("metadata").fail(message, "namespace", code="QuotaDuplicate")
                found[quota.namespace] = quota
        return tuple(found.values())

    def read_budgets(self) -> tuple[DisruptionBudget, ...]:
        pods = [*self.running, *self.pending]
        found = []
        for document, root in self._sorted.get("PodDisruptionBudget", ()):
            with _WithLocation(document):
                found.append(quotas_and_budgets.disruption_budget(root, pods))
        return tuple(found)

    def read_pod_usages(self) -> tuple[PodUsage, ...]:
        found = []
        for document, root in self._sorted.get("PodMetrics", ()):
            with _WithLocation(document):
                found.append(metrics.pod_usage(root))
        return metrics.of_controllers(found, [*self.running, *self.pending])

    def read_pods(self, reader: PodReader) -> None:
        own = [(document, root) for document, root in self._sorted.get("Pods", ()) if root.value["kind"] == "Pod"]
        self._taken.update(
            f"{namespace_of(root.view('metadata'))}/{root.view('metadata').text('name')}" for _, root in own
        )
        for document, root in self._sorted.get("Pods", ()):
            kind = root.value["kind"]
            with _WithLocation(document):
                if self._workload:
                    _check_size(root.view("spec") if kind == "Pod" else root.view("spec").view("template").view("spec"))
                if kind == "Pod":
                    pod = reader.pod(root)
                    if pod is not None:
                        (self.running if pod.node_name else self.pending).append(pod)
                elif self._workload:
                    pods = list(controllers.expand(root, kind, reader, self._taken))
                    self._taken.update(pod.key for pod in pods)
                    self.pending.extend(pods)

    def read_nodes(self) -> tuple[NodeReport, ...]:
        reports: dict[str, NodeReport] = self._each("Node", nodes.node)
        problems: dict[str, list[str]] = {}

        def topology(root: FieldView) -> dict[str, Any]:
            own = problems.setdefault(root.view("metadata").text("name"), [])
            power = node_topology.power(root, own)
            # The object may have been written only for its power attributes, without zones.
            numa = node_topology.numa(root, own) if power is None or "zones" in root else None
            return {"numa": numa, "power": power}

        for kind, read in (
            ("NodeGpu", lambda root: {"gpus": node_gpus.cards(root)}),
            ("NodeMetrics", lambda root: {"usage": metrics.node_usage(root)}),
            ("NodeUsage", lambda root: {"usage": nodes.usage(root)}),
            ("CSINode", lambda root: {"attach_limits": storage.attach_limits(root)}),
            ("NodeResourceTopology", topology),
        ):
            for name, facts in self._each(kind, read).items():
                if name in reports:
                    reports[name] = msgspec.structs.replace(reports[name], **facts)
        for name, found in problems.items():
            if found and name in reports:
                reports[name] = msgspec.structs.replace(reports[name], problems=(*reports[name].problems, *found))
        return tuple(node_gpus.with_vendors(report) for report in reports.values())


def _check_size(spec: FieldView) -> None:
    """Reject a submitted pod whose spec is too large; pods of a cluster are read regardless of their size."""
    size = len(encode(spec.value))
    if size > MOST_SPEC_BYTES:
        message = Message("{n} bytes exceed the maximum of {m} for the spec of a pod", n=size, m=MOST_SPEC_BYTES)
        spec.fail(message, code="PodTooLarge", hint="Keep large values in a ConfigMap")


class _WithLocation:
    """Context manager that adds the document's location to an InputError raised in its block."""

    __slots__ = ("_document",)

    def __init__(self, document: Document) -> None:
        self._document = document

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, InputError):
            raise self._document.locate(with_misspelling(self._document, error)) from None


def _priority_class(root: FieldView) -> PriorityClass:
    value = root.integer("value", least=-(2**31), most=2**31 - 1)
    return PriorityClass(value, root.flag("globalDefault"), preempts(root))


def _runtime_class(root: FieldView) -> RuntimeClass:
    scheduling = root.view("scheduling")
    return RuntimeClass(
        overhead=tuple(sorted(root.view("overhead").amounts("podFixed").items())),
        node_selector=selectors.node_selector(scheduling),
        tolerations=selectors.tolerations(scheduling),
    )


def _namespace_policy(root: FieldView) -> str:
    return root.view("metadata").annotations().get(keys.POLICY, "").strip()


def _policy(root: FieldView) -> PolicySpec:
    meta, spec = root.view("metadata"), root.view("spec")
    name = meta.name(label=True)
    if not spec.views("plugins"):
        spec.fail("must have at least one plugin", "plugins", code="PolicyMalformed", hint=ADD_PLUGIN)
    try:
        policy = msgspec.convert({**spec.value, "name": name}, PolicySpec)
    except msgspec.ValidationError as error:
        message, _ = without_path(error)
        hint = remedy_for(error, PolicySpec, spec.value, added=("name",))
        raise InputError("PolicyMalformed", message, place=f"spec.{field_of(error)}", hint=hint) from None
    used = [plugin.name for plugin in policy.plugins]
    for position, plugin in enumerate(used):
        if plugin in used[:position]:
            message = Message("{name} occurs twice", name=plugin)
            again = spec.views("plugins")[position]
            again.fail(message, "name", code="PolicyMalformed", hint="Remove one of the two entries")
    return policy


def _name_of(document: Document) -> str:
    meta = FieldView(document.object).view("metadata")
    return f"{document.object['kind']} {namespace_of(meta)}/{meta.text('name') or meta.text('generateName')}"


MOST_SPEC_BYTES = 256 * 1024
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # the API server's letters for generated names; no vowels, so no words
_LETTERS_OF_NAME = 8
_MOST_GENERATED = 63
# Kinds that create pods but are only listed as omitted: a DaemonSet creates one pod per node and a CronJob creates pods
# over time, so neither has a number of pods to place now.
_MADE_ELSEWHERE = {("DaemonSet", "apps"), ("CronJob", "batch"), ("ReplicationController", "")}
_NAMESPACED = {
    "Pod", "PodGroup", "Workload", "PersistentVolumeClaim", "ResourceClaim", "ElasticQuota",
    "PodDisruptionBudget", "PodMetrics", *controllers.KINDS,
}  # fmt: skip
_CRANE = "topology.crane.io"
_READ = {
    ("Node", ""), ("Pod", ""), ("Namespace", ""),
    ("PriorityClass", "scheduling.k8s.io"), ("RuntimeClass", "node.k8s.io"),
    ("PodGroup", "scheduling.x-k8s.io"), ("PodGroup", "scheduling.sigs.k8s.io"),
    ("PodGroup", "scheduling.k8s.io"), ("Workload", "scheduling.k8s.io"), ("Topology", "kueue.x-k8s.io"),
    ("PersistentVolume", ""), ("PersistentVolumeClaim", ""), ("StorageClass", "storage.k8s.io"),
    ("CSINode", "storage.k8s.io"),
    ("ResourceSlice", "resource.k8s.io"), ("DeviceClass", "resource.k8s.io"), ("ResourceClaim", "resource.k8s.io"),
    ("DeviceTaintRule", "resource.k8s.io"),
    ("ElasticQuota", "scheduling.x-k8s.io"), ("ElasticQuota", "scheduling.sigs.k8s.io"),
    ("PodDisruptionBudget", "policy"), ("PodMetrics", "metrics.k8s.io"), ("NodeMetrics", "metrics.k8s.io"),
    ("NodeResourceTopology", "topology.node.k8s.io"), ("NodeResourceTopology", _CRANE),
    ("NodeGpu", "hetsched.io"), ("NodeUsage", "hetsched.io"), ("SchedulingPolicy", "hetsched.io"),
    *((kind, group.rstrip("/")) for kind, group in controllers.KINDS.items()),
}  # fmt: skip
