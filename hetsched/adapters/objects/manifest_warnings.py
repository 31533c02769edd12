"""Warnings about manifests: misspelt names with a suggestion, and kinds of rules that are not simulated.

Unknown fields are kept and ignored (public contract, section 1), so `contaners:` or `hetsched.io/gpu-modell` would
silently request nothing. Known fields come from the OpenAPI models of the Kubernetes Python client
(`hetsched.adapters.kubernetes.field_table`), known annotations and labels from `keys`. Any device plugin may define
resource names, so a name gives a warning only if it is similar to one of `units` and no known node offers it. An object
whose kind is not read gives a warning if it contains a pod template, except for templates that are patterns in a policy
(Kyverno). kube-apiserver enforces ResourceQuota and LimitRange when it admits pods; hetsched does not simulate them and
gives a warning. Cluster files are also checked, except pods and controllers, which kube-apiserver wrote. At most `MOST`
warnings are returned for one file, misspellings first, so that strict mode never misses one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

import msgspec

from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message, joined
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.warnings import NOT_SIMULATED, ManifestWarning
from hetsched.contracts.spelling import nearest, suggestion
from hetsched.contracts.units import DISK_MBPS, GPU_RESOURCES, NETWORK_MBPS

from . import keys
from .demands import AWARENESS_VALUES, CPU_POLICIES, unknown_to_crane
from .documents import Document
from .keys import ANNOTATIONS, ATTRIBUTES, LABELS, OWN_PREFIXES

MOST = 50
_RESOURCES = (*GPU_RESOURCES, NETWORK_MBPS, DISK_MBPS)
# Similarity at which nvidia.com/gpus and nvidea.com/gpu are misspellings, but nvidia.com/gpumem and amd.com/cpu are
# not.
_SAME_RESOURCE = 0.92
# Similarity for keys outside `OWN_PREFIXES`, at which hetshed.io/isa is a misspelling, but keys of other projects are
# not.
_SAME_KEY = 0.88
# Attributes may have any name, so only names that are similar to a known one are reported.
_SAME_ATTRIBUTE = 0.85
_GROUPS = {
    "Pod": "", "Job": "batch", "Deployment": "apps", "ReplicaSet": "apps", "StatefulSet": "apps", "DaemonSet": "apps",
    "CronJob": "batch", "ReplicationController": "",
}  # fmt: skip
_GANGS = ("scheduling.x-k8s.io", "scheduling.sigs.k8s.io")
# Kinds without pods, with their API groups; these kinds are also checked in cluster files.
_SETTINGS = {
    "Namespace": ("",), "PodGroup": _GANGS, "ElasticQuota": _GANGS,
    "NodeResourceTopology": ("topology.node.k8s.io", "topology.crane.io"),
}  # fmt: skip
# Paths of job and pod templates in objects of the kinds in `_GROUPS`; a Pod has the empty path.
_JOB = ("spec", "jobTemplate")
_PODS: tuple[tuple[str, ...], ...] = ((), ("spec", "template"), (*_JOB, "spec", "template"))
# Fields of Kyverno rules whose values are patterns or patches for other objects.
_RULES = frozenset({"validate", "mutate", "generate"})
# Kinds that only store a pod template.
_STORED = frozenset({"PodTemplate", "ControllerRevision"})
_PATTERN = frozenset("*?!|<>=()^+${}")
_ADMISSION = {
    "ResourceQuota": (
        "kube-apiserver enforces a ResourceQuota when pods are created; hetsched ignores it",
        "Use an ElasticQuota for a limit that hetsched enforces",
    ),
    "LimitRange": (
        "kube-apiserver applies a LimitRange when pods are created; hetsched ignores it",
        "Write the requests and limits into the pods",
    ),
}

_KIND_NOT_READ = "the kind {text} is not supported; its pods are ignored"
_MISPLACED = {
    "annotations": (Message("the key has an effect only as a label"), Message("Move the key to labels")),
    "labels": (Message("the key has an effect only as an annotation"), Message("Move the key to annotations")),
}
_UNKNOWN_KEY = {
    "annotations": ("AnnotationUnknown", Message("the annotation is not known")),
    "labels": ("LabelUnknown", Message("the label is not known")),
}


class _FieldTable(msgspec.Struct, frozen=True):
    roots: dict[str, str]
    models: dict[str, dict[str, str]]


@cache
def _table() -> _FieldTable:
    return msgspec.json.decode(
        (Path(__file__).parent.parent / "data" / "kubernetes_fields.json").read_bytes(), type=_FieldTable
    )


def manifest_warnings(
    documents: Sequence[Document], *, workload: bool, known: ClusterContent | None = None
) -> tuple[ManifestWarning, ...]:
    """Return warnings about probable misspellings in a workload file and about unsimulated objects in any file.

    `known` is the cluster whose nodes define additional resource names.
    """
    offered = _NodeResources(known)
    misspelt = (_of_document(each, offered) if workload else _of_settings(each) for each in documents)
    # Misspellings come first, so that the limit does not remove warnings that strict mode rejects.
    found = chain(misspelt, map(_not_simulated, documents))
    return tuple(islice(chain.from_iterable(found), MOST))


def refuse_warnings(warnings: Sequence[ManifestWarning]) -> None:
    """Reject warnings that strict mode forbids. Raises: InputError for the first one, with the others attached."""
    refused = next((warning for warning in warnings if warning.is_refused_by_strict), None)
    if refused is not None:
        raise refused.as_error().with_warnings(warning for warning in warnings if warning is not refused)


def kind_hint(warnings: Sequence[ManifestWarning]) -> Message:
    """Return the hint for a kind that was not read, or an empty message if every kind was read."""
    for each in warnings:
        if each.code == "KindUnknown":
            return Message("{name}: {detail}", name=each.place, detail=each.hint or each.message)
    return Message("")


def with_misspelling(document: Document, error: InputError) -> InputError:
    """Return an error of this document, with a hint that names the misspelt field if that field caused the error.

    A misspelt field caused the error if the corrected field contains the error's place.
    """
    for found in islice(_of_document(document, _NodeResources(None)), MOST):
        place = found.place.removeprefix(f"{document.file}#{document.number} {document.path}")
        parent = place[: place.rfind(".") + 1]
        if found.code != "FieldUnknown" or not error.place.startswith(parent):
            continue
        field = error.place[len(parent) :].partition(".")[0].partition("[")[0]
        if found.hint == suggestion(field):
            hint = Message("{text} is not known. Did you mean {name}?", text=place, name=field)
            return InputError(error.code, error.message, place=error.place, hint=hint)
    return error


def explains(error: InputError, warning: ManifestWarning) -> bool:
    """Return whether the hint of an error already names the field of a warning."""
    field, known, _ = error.hint.partition(" is not known. ")
    document = error.place.partition(" ")[0]
    return bool(known) and warning.place.startswith(f"{document} ") and warning.place.endswith(field)


class _NodeResources:
    """The resources that the nodes of a cluster offer, collected at the first lookup."""

    def __init__(self, known: ClusterContent | None) -> None:
        self._nodes = () if known is None else known.nodes
        self._names: frozenset[str] | None = None

    def __contains__(self, name: str) -> bool:
        if self._names is None:
            self._names = frozenset(name for node in self._nodes for name in node.allocatable)
        return name in self._names


def _not_simulated(document: Document) -> Iterator[ManifestWarning]:
    found = _ADMISSION.get(document.object["kind"])
    if found is not None and document.object["apiVersion"] == "v1":
        yield ManifestWarning(NOT_SIMULATED, Message(found[0]), f"{_prefix(document)}kind", Message(found[1]))


def _prefix(document: Document) -> str:
    return f"{document.file}#{document.number} {document.path}"


def _of_document(document: Document, offered: _NodeResources) -> Iterator[ManifestWarning]:
    root, kind, prefix = document.object, document.object["kind"], _prefix(document)
    group = root["apiVersion"].rpartition("/")[0]
    if kind in _SETTINGS:
        yield from _of_settings(document)
        return
    if kind not in _GROUPS or group != _GROUPS[kind]:
        yield from _of_kind(root, kind, prefix)
        return
    yield from _of_fields(root, _table().roots[kind], prefix)
    pod = _pod_of(root)
    for path in (*_PODS, _JOB):
        meta = _inside(root, *path, "metadata")
        if isinstance(meta, dict):
            yield from _of_keys(meta, prefix + ".".join((*path, "metadata")), pod)
    for path in _PODS:
        spec = _inside(root, *path, "spec")
        if isinstance(spec, dict):
            yield from _of_resources(spec, prefix + ".".join((*path, "spec")), offered, pod)


def _of_settings(document: Document) -> Iterator[ManifestWarning]:
    """Warn about misspelt names in an object of `_SETTINGS`."""
    root, prefix = document.object, _prefix(document)
    if root["apiVersion"].rpartition("/")[0] not in _SETTINGS.get(root["kind"], ()):
        return
    yield from _of_fields(root, _table().roots[root["kind"]], prefix)
    meta = root.get("metadata")
    if isinstance(meta, dict):
        yield from _of_keys(meta, f"{prefix}metadata", "")
    if root["kind"] == "NodeResourceTopology":
        zones = root.get("zones")
        holders = [(root, prefix)]
        holders += [(zone, f"{prefix}zones[{n}].") for n, zone in enumerate(zones if isinstance(zones, list) else ())]
        for holder, place in holders:
            yield from _of_attributes(_inside(holder, "attributes"), f"{place}attributes")


def _of_attributes(attributes: Any, path: str) -> Iterator[ManifestWarning]:
    """Warn about misspelt attributes; `attributes` is a list of names and values or (crane) a mapping."""
    listed = attributes if isinstance(attributes, list) else ()
    named = [(f"{path}[{position}].name", _inside(item, "name")) for position, item in enumerate(listed)]
    named += [(f"{path}['{name[:80]}']", name) for name in (attributes if isinstance(attributes, dict) else ())]
    for place, name in named:
        unknown = isinstance(name, str) and name not in ATTRIBUTES
        meant = nearest(name, ATTRIBUTES, cutoff=_SAME_ATTRIBUTE) if unknown else ""
        if meant:
            yield ManifestWarning("AttributeUnknown", Message("the attribute is not known"), place, suggestion(meant))


def _of_kind(root: dict[str, Any], kind: str, prefix: str) -> Iterator[ManifestWarning]:
    """Warn about an object that contains pods but whose kind is not read."""
    if kind in _STORED or not (_is_pod(root) or _has_template(root)):
        return
    version = root["apiVersion"]
    group = version.rpartition("/")[0]
    meant = kind if kind in _GROUPS else nearest(kind, tuple(_GROUPS)) or _by_ending(kind)
    right = f"{_GROUPS[meant]}/v1".removeprefix("/") if meant else ""
    if "." in group and not group.endswith(".k8s.io"):
        message = Message(_KIND_NOT_READ, text=f"{version[:80]}/{kind[:80]}")
        hint = suggestion(f"{right}/{meant}") if meant else msgspec.UNSET
    elif kind in _GROUPS:
        message = Message("{text} has no kind {name}; pods of this object are ignored", text=version, name=kind)
        hint = Message("Write apiVersion: {name}", name=right)
    else:
        message = Message(_KIND_NOT_READ, text=repr(kind[:80]))
        hint = suggestion(meant) if meant else msgspec.UNSET
    yield ManifestWarning("KindUnknown", message, f"{prefix}kind", hint)


def _by_ending(kind: str) -> str:
    """Return the known kind that is a suffix of this kind, such as Job for PyTorchJob, or "" if there is none."""
    return max((known for known in _GROUPS if kind.endswith(known)), key=len, default="")


def _has_template(value: Any) -> bool:
    """Return whether an object contains a pod template at any depth; the reader limits the depth."""
    if isinstance(value, list):
        return any(map(_has_template, value))
    if not isinstance(value, dict):
        return False
    return _is_pod(value.get("template")) or any(
        _has_template(below) for name, below in value.items() if name not in _RULES
    )


def _is_pod(value: Any) -> bool:
    """Return whether an object has a pod spec, that is, containers whose names and images are not patterns."""
    containers = _inside(value, "spec", "containers")
    if not isinstance(containers, list) or not containers:
        return False
    texts = [(_inside(container, "name"), str(_inside(container, "image"))) for container in containers]
    return all(isinstance(name, str) and _PATTERN.isdisjoint(name + image) for name, image in texts)


def _of_fields(value: Any, model: str, path: str) -> Iterator[ManifestWarning]:
    """Warn about unknown fields of an object and its nested objects, depth first; the reader limits the depth."""
    fields = _table().models[model]
    separator = "" if path.endswith((" ", ".")) else "."
    for name, below in value.items():
        place = f"{path}{separator}{name[:80]}"
        inner = fields.get(name)
        if inner is None:
            if name not in ("apiVersion", "kind"):
                meant = nearest(name, fields)
                message = Message("the field {text} is not known", text=repr(name[:80]))
                yield ManifestWarning("FieldUnknown", message, place, _suggestion(meant))
        elif inner and isinstance(below, dict):
            yield from _of_fields(below, inner, place)
        elif inner and isinstance(below, list):
            for position, item in enumerate(below):
                if isinstance(item, dict):
                    yield from _of_fields(item, inner, f"{place}[{position}]")


def _of_keys(meta: dict[str, Any], path: str, pod: str) -> Iterator[ManifestWarning]:
    for key, value in (meta.get("annotations") or {}).items() if isinstance(meta.get("annotations"), dict) else ():
        if isinstance(value, str) and unknown_to_crane(key, value):
            default = Message("the node's setting") if key in keys.AWARENESS else "none"
            message = Message(
                "the value {text} is not known; the default is used: {value}", text=repr(value[:40]), value=default
            )
            values = AWARENESS_VALUES if key in keys.AWARENESS else CPU_POLICIES
            hint = Message("Use {text}", text=joined(" or ", values))
            yield ManifestWarning("AnnotationValueUnknown", message, f"{path}.annotations['{key}']", hint, pod)
    for field, known, others in (("annotations", ANNOTATIONS, LABELS), ("labels", LABELS, ANNOTATIONS)):
        written = meta.get(field)
        for key in written if isinstance(written, dict) else ():
            meant = "" if key in known else _meant_key(key, known) or _meant_key(key, others)
            if key in known or not (meant or key.startswith(OWN_PREFIXES)):
                continue
            place = f"{path}.{field}['{key[:80]}']"
            if key in others:
                message, hint = _MISPLACED[field]
                yield ManifestWarning("KeyMisplaced", message, place, hint, pod)
            else:
                code, message = _UNKNOWN_KEY[field]
                yield ManifestWarning(code, message, place, _suggestion(meant), pod)


def _suggestion(meant: str) -> Message:
    return suggestion(meant) if meant else Message("hetsched ignores unknown names")


@lru_cache(maxsize=4096)
def _meant_key(key: str, known: frozenset[str]) -> str:
    """Return the known key that `key` probably misspells, or "" if it is similar to none."""
    return nearest(key, known) if key.startswith(OWN_PREFIXES) else nearest(key, known, cutoff=_SAME_KEY)


def _of_resources(spec: dict[str, Any], path: str, offered: _NodeResources, pod: str) -> Iterator[ManifestWarning]:
    """Warn about probably misspelt resources of a pod and its containers."""
    holders = [(spec, path)]
    for group in ("containers", "initContainers"):
        containers = spec.get(group)
        for position, container in enumerate(containers if isinstance(containers, list) else ()):
            holders.append((container, f"{path}.{group}[{position}]"))
    for holder, place in holders:
        named = {
            name: field
            for field in ("limits", "requests")
            if isinstance(stated := _inside(holder, "resources", field), dict)
            for name in stated
        }
        for name, field in named.items():
            if "/" not in name or name in _RESOURCES or name in offered:
                continue
            meant = nearest(name, _RESOURCES, cutoff=_SAME_RESOURCE)
            if meant:
                where = f"{place}.resources.{field}.{name[:80]}"
                yield ManifestWarning(
                    "ResourceUnknown", Message("no known node offers this resource"), where, suggestion(meant), pod
                )


def _inside(value: Any, *path: str) -> Any:
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _pod_of(root: dict[str, Any]) -> str:
    meta = root.get("metadata")
    if root["kind"] != "Pod" or not isinstance(meta, dict):
        return ""
    return f"{meta.get('namespace') or 'default'}/{meta.get('name')}"
