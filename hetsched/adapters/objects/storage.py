"""Readers of PersistentVolume, PersistentVolumeClaim, StorageClass and CSINode objects, and of the claims of pods.

A claim counts as bound to the volume that it names if its phase is Bound, if its phase is Pending and an annotation
marks the binding as completed, or if it has no phase (as in a file). A volume is treated as missing if it is released,
failed or being deleted. Zone and region labels of a volume, with values separated by `__`, restrict it like its node
affinity; the beta label keys are equivalent to the current keys. A claim's class is the legacy annotation if present,
else `storageClassName`; a claim without either uses the default class. The claim of an ephemeral volume is named
`<pod>-<volume>`, and a claim of a StatefulSet `<template>-<pod>`.
Source: Kubernetes core/v1 and storage.k8s.io/v1; component-helpers/storage/volume (annotations).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from hetsched.contracts.message import Message
from hetsched.contracts.objects.node_constraints import Expression, NodeTerm
from hetsched.contracts.objects.storage import BETA_ZONES, PersistentVolume, StorageClass, VolumeClaim
from hetsched.contracts.objects.workload import ClaimRequest, ClaimUse
from hetsched.contracts.remedies import allowed_values

from .fields import FieldView, metadata
from .selectors import label_selector, node_term

BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
DEFAULT_CLASS = ("storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class")
MODES = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")
ZONE_SEPARATOR = "__"
_PHASES = ("", "Pending", "Available", "Bound", "Released", "Failed", "Lost")
_NOT_SOURCES = frozenset({
    "capacity", "accessModes", "claimRef", "persistentVolumeReclaimPolicy", "storageClassName", "mountOptions",
    "volumeMode", "nodeAffinity", "volumeAttributesClassName",
})  # fmt: skip
_PRESENT = {beta: key for key, beta in BETA_ZONES.items()}


def persistent_volume(root: FieldView) -> PersistentVolume:
    """Read a PersistentVolume."""
    meta, spec = metadata(root), root.view("spec")
    reference, csi = spec.view("claimRef"), spec.view("csi")
    labels = meta.labels()
    phase = root.view("status").choice("phase", _PHASES, "")
    source = next((key for key in spec.value if key not in _NOT_SOURCES), "")
    return PersistentVolume(
        name=meta.text("name"),
        capacity_bytes=spec.amounts("capacity").get("storage", 0),
        modes=_modes(spec),
        storage_class=_class(meta, spec) or "",
        block=_is_block(spec),
        labels=labels,
        terms=_node_terms(spec),
        zones=tuple(_zones(labels)),
        claim=f"{reference.text('namespace')}/{reference.text('name')}" if "name" in reference else "",
        claim_uid=reference.text("uid"),
        gone=phase in ("Released", "Failed") or "deletionTimestamp" in meta,
        source=source,
        driver=csi.text("driver"),
        handle=csi.text("volumeHandle"),
    )


def is_bound(phase: str, annotations: Mapping[str, str], volume: str) -> bool:
    """Return whether a claim with this phase, these annotations and this volume name is bound to the volume.

    The annotation precedes the phase, which a controller may not write.
    Source: kube-scheduler's isPVCFullyBound, which reads only the annotation and the name of the volume.
    """
    return phase == "Bound" or (phase != "Lost" and bool(volume) and BIND_COMPLETED in annotations)


def volume_claim(root: FieldView, namespace: str) -> VolumeClaim:
    """Read a PersistentVolumeClaim."""
    meta, spec = metadata(root), root.view("spec")
    phase = root.view("status").choice("phase", _PHASES, "")
    named = spec.text("volumeName")
    bound = not phase or is_bound(phase, meta.annotations(), named)
    return VolumeClaim(
        namespace=namespace,
        name=meta.text("name"),
        asks=claim_request(meta, spec),
        uid=meta.text("uid"),
        volume=named if bound else "",
        wanted="" if bound else named,
        selected_node=meta.annotations().get(SELECTED_NODE, ""),
        lost=phase == "Lost",
        deleting="deletionTimestamp" in meta,
    )


def claim_request(meta: FieldView, spec: FieldView) -> ClaimRequest:
    """Read the requirements of a claim or of a claim template."""
    return ClaimRequest(
        storage_class=_class(meta, spec),
        request_bytes=spec.view("resources").amounts("requests").get("storage", 0),
        modes=_modes(spec),
        block=_is_block(spec),
        selector=label_selector(spec, "selector"),
    )


def storage_class(root: FieldView) -> StorageClass:
    """Read a StorageClass."""
    meta = metadata(root)
    mode = root.choice("volumeBindingMode", ("Immediate", "WaitForFirstConsumer"), "Immediate")
    terms = []
    for term in root.views("allowedTopologies"):
        expressions = term.views("matchLabelExpressions")
        terms.append(NodeTerm(tuple(Expression(e.text("key"), "In", e.texts("values")) for e in expressions)))
    return StorageClass(
        provisioner=root.text("provisioner"),
        waits=mode == "WaitForFirstConsumer",
        default=any(meta.annotations().get(key) == "true" for key in DEFAULT_CLASS),
        topologies=tuple(terms),
    )


def attach_limits(root: FieldView) -> dict[str, int]:
    """Read the maximum number of volumes that each driver can attach to a node, from its CSINode."""
    metadata(root)
    limits = {}
    for driver in root.view("spec").views("drivers"):
        count = driver.view("allocatable").maybe_integer("count", most=2**31 - 1)
        if count is not None:
            limits[driver.text("name")] = count
    return limits


def claims_of(spec: FieldView, pod: str) -> tuple[ClaimUse, ...]:
    """Read the claims that a pod of this name uses."""
    found: dict[str, ClaimUse] = {}
    for volume in spec.views("volumes"):
        if "persistentVolumeClaim" in volume:
            name = volume.view("persistentVolumeClaim").name("claimName")
            found[name] = ClaimUse(name)
        elif "ephemeral" in volume:
            template = volume.view("ephemeral").view("volumeClaimTemplate")
            name = f"{pod}-{volume.text('name')}"
            found[name] = ClaimUse(name, claim_request(template.view("metadata"), template.view("spec")))
    return tuple(found.values())


def templates_of(spec: FieldView) -> dict[str, ClaimRequest]:
    """Read the claim templates of a StatefulSet, by name."""
    return {
        metadata(template).text("name"): claim_request(template.view("metadata"), template.view("spec"))
        for template in spec.views("volumeClaimTemplates")
    }


def with_templates(uses: Iterable[ClaimUse], templates: dict[str, ClaimRequest], pod: str) -> tuple[ClaimUse, ...]:
    """Return one claim per template for a StatefulSet's pod, and the claims in `uses` that no template replaces."""
    own = {f"{name}-{pod}": ClaimUse(f"{name}-{pod}", template) for name, template in templates.items()}
    return tuple(({use.name: use for use in uses if use.name not in templates} | own).values())


def _class(meta: FieldView, spec: FieldView) -> str | None:
    old = meta.annotations().get(CLASS_ANNOTATION)
    if old is not None:
        return old
    return spec.text("storageClassName") if "storageClassName" in spec else None


def _modes(spec: FieldView) -> tuple[str, ...]:
    modes = spec.texts("accessModes")
    for mode in modes:
        if mode not in MODES:
            message = Message("{text} is not an allowed value", text=repr(mode[:80]))
            spec.fail(message, "accessModes", hint=allowed_values(mode, MODES))
    return modes


def _is_block(spec: FieldView) -> bool:
    return spec.choice("volumeMode", ("Filesystem", "Block"), "Filesystem") == "Block"


def _node_terms(spec: FieldView) -> tuple[NodeTerm, ...] | None:
    affinity = spec.view("nodeAffinity")
    if "required" not in affinity:
        return None
    return tuple(node_term(term) for term in affinity.view("required").views("nodeSelectorTerms"))


def _zones(labels: dict[str, str]) -> Iterator[Expression]:
    for label, value in labels.items():
        key = _PRESENT.get(label, label)
        if key in BETA_ZONES and value:
            yield Expression(key, "In", tuple(value.split(ZONE_SEPARATOR)))
