"""Export of storage objects; see `export.cluster`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hetsched.contracts.objects.storage import PersistentVolume, Storage, StorageClass, VolumeClaim
from hetsched.contracts.objects.workload import ClaimRequest, ClaimUse, PodSpec
from hetsched.contracts.units import format_amount

from ..storage import DEFAULT_CLASS, SELECTED_NODE
from .selectors import label_selector, node_term

Plain = dict[str, Any]
# Placeholder deletionTimestamp: the export records that an object is terminating, but not since when.
DELETION_TIME = "1970-01-01T00:00:00Z"


def storage_objects(storage: Storage) -> Iterator[Plain]:
    """Yield every storage object of a cluster."""
    for name, kind in storage.classes.items():
        yield _class_object(name, kind)
    for volume in storage.volumes.values():
        yield _volume_object(volume)
    for claim in storage.claims.values():
        yield _claim_object(claim)


def csi_node(name: str, limits: dict[str, int]) -> Plain:
    """Return the CSINode of a node."""
    drivers = [
        {"name": driver, "nodeID": name, "topologyKeys": [], "allocatable": {"count": count}}
        for driver, count in limits.items()
    ]
    about = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": name}}
    return about | {"spec": {"drivers": drivers}}


def _class_object(name: str, kind: StorageClass) -> Plain:
    meta: Plain = {"name": name}
    if kind.default:
        meta["annotations"] = {DEFAULT_CLASS[0]: "true"}
    plain: Plain = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": meta}
    plain |= {"provisioner": kind.provisioner}
    plain["volumeBindingMode"] = "WaitForFirstConsumer" if kind.waits else "Immediate"
    if kind.topologies:
        plain["allowedTopologies"] = [
            {"matchLabelExpressions": [{"key": e.key, "values": list(e.values)} for e in term.expressions]}
            for term in kind.topologies
        ]
    return plain


def _volume_object(volume: PersistentVolume) -> Plain:
    meta: Plain = {"name": volume.name}
    if volume.labels:
        meta["labels"] = volume.labels
    spec: Plain = {"capacity": {"storage": format_amount("memory", volume.capacity_bytes)}}
    spec["accessModes"] = list(volume.modes)
    if volume.storage_class:
        spec["storageClassName"] = volume.storage_class
    if volume.block:
        spec["volumeMode"] = "Block"
    if volume.terms is not None:
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [node_term(term) for term in volume.terms]}}
    if volume.claim:
        namespace, _, name = volume.claim.partition("/")
        reference = {"kind": "PersistentVolumeClaim", "namespace": namespace, "name": name, "uid": volume.claim_uid}
        spec["claimRef"] = {key: value for key, value in reference.items() if value}
    if volume.source:
        about = {"driver": volume.driver, "volumeHandle": volume.handle}
        spec[volume.source] = {key: value for key, value in about.items() if value}
    plain: Plain = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": meta, "spec": spec}
    if volume.gone:
        plain["status"] = {"phase": "Released"}
    return plain


def _claim_object(claim: VolumeClaim) -> Plain:
    meta: Plain = {"name": claim.name, "namespace": claim.namespace}
    if claim.uid:
        meta["uid"] = claim.uid
    if claim.selected_node:
        meta["annotations"] = {SELECTED_NODE: claim.selected_node}
    if claim.deleting:
        meta["deletionTimestamp"] = DELETION_TIME
    spec = claim_spec(claim.asks)
    if claim.volume or claim.wanted:
        spec["volumeName"] = claim.volume or claim.wanted
    phase = "Lost" if claim.lost else "Bound" if claim.volume else "Pending"
    status = {"phase": phase}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec, "status": status}


def claim_spec(asks: ClaimRequest) -> Plain:
    """Return the requirements of a claim as the spec of a PersistentVolumeClaim."""
    spec: Plain = {"resources": {"requests": {"storage": format_amount("memory", asks.request_bytes)}}}
    if asks.modes:
        spec["accessModes"] = list(asks.modes)
    if asks.storage_class is not None:
        spec["storageClassName"] = asks.storage_class
    if asks.block:
        spec["volumeMode"] = "Block"
    if asks.selector is not None:
        spec["selector"] = label_selector(asks.selector)
    return spec


def pod_volumes(pod: PodSpec) -> list[Plain]:
    """Return the pod's volumes that use claims; a claim named `<pod>-<volume>` with a template is ephemeral."""
    found: list[Plain] = []
    for number, use in enumerate(pod.shape.claims):
        if use.template is not None and _is_ephemeral(use, pod):
            template = {"spec": claim_spec(use.template)}
            name = use.name.removeprefix(f"{pod.name}-")
            found.append({"name": name, "ephemeral": {"volumeClaimTemplate": template}})
        else:
            found.append({"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": use.name}})
    return found


def inexpressible_templates(pod: PodSpec) -> dict[str, ClaimRequest]:
    """Return, by claim name, the templates of a StatefulSet that the volumes of the pod cannot express."""
    uses = pod.shape.claims
    return {use.name: use.template for use in uses if use.template is not None and not _is_ephemeral(use, pod)}


def _is_ephemeral(use: ClaimUse, pod: PodSpec) -> bool:
    return use.name.startswith(f"{pod.name}-")
