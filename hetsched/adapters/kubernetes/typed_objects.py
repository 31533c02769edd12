"""Fields of live pods and nodes that the readers use, as types for the decoder.

Half of a pod's JSON is `managedFields`, probes and environment; a node lists fifty images. The decoder skips each field
that is not declared here, so that the field never becomes a Python object. The result is a plain object for the same
readers that read files, so live objects and files give the same result. An object that does not match its type is
decoded completely, and the reader reports the invalid field.
Invariant: no reader of a live pod or node uses a field that is not declared here; a test records the fields they use.
Source: Kubernetes core/v1 Pod and Node.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

import msgspec

from hetsched.adapters.objects import keys
from hetsched.adapters.objects.node_images import replace_images
from hetsched.contracts.message import as_text
from hetsched.contracts.objects.workload import COPIED_NODE_LABELS

# -- pods --------------------------------------------------------------------------------------------------------------


class _OwnerFields(TypedDict, total=False):
    controller: Any
    kind: Any
    name: Any
    uid: Any


class _PodMetaFields(TypedDict, total=False):
    annotations: Any
    creationTimestamp: Any
    deletionGracePeriodSeconds: Any
    deletionTimestamp: Any
    labels: Any
    name: Any
    namespace: Any
    ownerReferences: list[_OwnerFields | None] | None
    resourceVersion: Any
    uid: Any


class _RestartRuleFields(TypedDict, total=False):
    action: Any


class _MountFields(TypedDict, total=False):
    bindMountOptions: Any


class _ContainerFields(TypedDict, total=False):
    name: Any
    image: Any
    ports: Any
    resources: Any
    restartPolicy: Any
    restartPolicyRules: list[_RestartRuleFields | None] | None
    volumeMounts: list[_MountFields | None] | None


class _ImageVolumeFields(TypedDict, total=False):
    reference: Any


class _VolumeFields(TypedDict, total=False):
    name: Any
    emptyDir: Any
    ephemeral: Any
    hostPath: Any
    persistentVolumeClaim: Any
    awsElasticBlockStore: Any
    azureDisk: Any
    cinder: Any
    gcePersistentDisk: Any
    image: _ImageVolumeFields | None
    iscsi: Any
    rbd: Any
    vsphereVolume: Any


class _PodSpecFields(TypedDict, total=False):
    affinity: Any
    containers: list[_ContainerFields | None] | None
    hostNetwork: Any
    hostUsers: Any
    imagePullSecrets: Any
    initContainers: list[_ContainerFields | None] | None
    nodeName: Any
    nodeSelector: Any
    overhead: Any
    preemptionPolicy: Any
    priority: Any
    priorityClassName: Any
    resourceClaims: Any
    resources: Any
    runtimeClassName: Any
    schedulerName: Any
    schedulingGates: Any
    schedulingGroup: Any
    terminationGracePeriodSeconds: Any
    tolerations: Any
    topologySpreadConstraints: Any
    volumes: list[_VolumeFields | None] | None
    workloadRef: Any
    # Fields of a container: the reader of container resources also reads pod-level resources, from the spec.
    name: Any
    image: Any
    restartPolicy: Any


class _ReasonFields(TypedDict, total=False):
    exitCode: Any
    message: Any
    reason: Any


class _StateFields(TypedDict, total=False):
    running: Any
    terminated: _ReasonFields | None
    waiting: _ReasonFields | None


class _ContainerStatusFields(TypedDict, total=False):
    allocatedResources: Any
    allocatedResourcesStatus: Any
    lastState: _StateFields | None
    name: Any
    resources: Any
    state: _StateFields | None


class _PodConditionFields(TypedDict, total=False):
    reason: Any
    type: Any


class _PodStatusFields(TypedDict, total=False):
    allocatedResources: Any
    conditions: list[_PodConditionFields | None] | None
    containerStatuses: list[_ContainerStatusFields | None] | None
    extendedResourceClaimStatus: Any
    initContainerStatuses: list[_ContainerStatusFields | None] | None
    message: Any
    phase: Any
    qosClass: Any
    reason: Any
    resourceClaimStatuses: Any
    resources: Any
    startTime: Any


class _PodFields(TypedDict, total=False):
    metadata: _PodMetaFields | None
    spec: _PodSpecFields | None
    status: _PodStatusFields | None


# -- nodes -------------------------------------------------------------------------------------------------------------


class _NodeMetaFields(TypedDict, total=False):
    annotations: Any
    labels: Any
    name: Any
    uid: Any


class _NodeSpecFields(TypedDict, total=False):
    taints: Any
    unschedulable: Any


class _NodeConditionFields(TypedDict, total=False):
    status: Any
    type: Any


class _AddressFields(TypedDict, total=False):
    address: Any


class _NodeInfoFields(TypedDict, total=False):
    bootID: Any
    kubeletVersion: Any


class _ImageFields(TypedDict, total=False):
    names: Any
    sizeBytes: Any


class _NodeStatusFields(TypedDict, total=False):
    addresses: list[_AddressFields | None] | None
    allocatable: Any
    capacity: Any
    conditions: list[_NodeConditionFields | None] | None
    declaredFeatures: Any
    images: list[_ImageFields | None] | None
    nodeInfo: _NodeInfoFields | None


class _NodeFields(TypedDict, total=False):
    metadata: _NodeMetaFields | None
    spec: _NodeSpecFields | None
    status: _NodeStatusFields | None


_BY_BINDING = frozenset({keys.ALLOCATION, keys.TOPOLOGY_RESULT})
_NODE_NAME = frozenset({"nodeName"})
_pod = msgspec.json.Decoder(_PodFields)
_node = msgspec.json.Decoder(_NodeFields)
_encoder = msgspec.json.Encoder(enc_hook=as_text)


def decode_pod(body: bytes) -> Any:
    """Return a pod with the fields that its readers use, or the complete object if it has another shape.

    Raises: ValueError, RecursionError if the text is not valid JSON.
    """
    try:
        return _pod.decode(body)
    except msgspec.DecodeError:
        return json.loads(body)


def pod_fields(body: bytes) -> bytes:
    """Return a pod's JSON with the fields that its readers use, or the body unchanged if it has another shape."""
    return _fields(_pod, body)


def node_fields(body: bytes) -> bytes:
    """Return a node's JSON with the fields that its readers use, or the body unchanged if it has another shape.

    The images are in their compact form. A heartbeat does not change the result.
    """
    return _fields(_node, body, replace_images)


def _fields(decoder: msgspec.json.Decoder[Any], body: bytes, change: Callable[[Any], None] | None = None) -> bytes:
    try:
        plain = decoder.decode(body)
        if change is not None:
            change(plain)
        return _encoder.encode(plain)
    except (msgspec.DecodeError, OverflowError, RecursionError):
        return body


def content_digest(pod: Any) -> int | None:
    """Return a hash of a pod's content that is valid within this process, or None if the object is not a pod.

    The content consists of labels, owners, annotations and spec, without the node, the annotations that a Binding
    writes, and the labels that the API server then copies from the node. If an update does not change the digest, it
    only binds the pod or changes its status.
    """
    try:
        meta, spec = pod["metadata"], pod["spec"]
        annotations = _without(meta.get("annotations") or {}, _BY_BINDING)
        labels = _without(meta.get("labels") or {}, COPIED_NODE_LABELS)
        parts = labels, meta.get("ownerReferences"), annotations, _without(spec, _NODE_NAME)
        return hash(_encoder.encode(parts))
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return None


def _without(fields: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}
