"""Persistent storage: volumes, volume claims and storage classes.

The structs hold the facts of the API objects unchanged, with sizes in bytes. The node constraints of a volume are in
`terms` (its node affinity) and `zones` (its zone and region labels, under their current keys). A claim that does not
exist yet has the request of the pod's claim template.
Source: Kubernetes core/v1 PersistentVolume and PersistentVolumeClaim, storage.k8s.io/v1 StorageClass.
"""

from __future__ import annotations

import msgspec

from .node_constraints import Expression, NodeTerm
from .workload import ClaimRequest

NO_PROVISIONER = "kubernetes.io/no-provisioner"
# Volume sources that Kubernetes migrates to a CSI driver internally.
MIGRATED_SOURCES = (
    "awsElasticBlockStore", "azureDisk", "azureFile", "cinder", "gcePersistentDisk", "portworxVolume", "vsphereVolume",
)  # fmt: skip

BETA_ZONES = {
    "topology.kubernetes.io/zone": "failure-domain.beta.kubernetes.io/zone",
    "topology.kubernetes.io/region": "failure-domain.beta.kubernetes.io/region",
}


class PersistentVolume(msgspec.Struct, frozen=True):
    """Persistent volume.

    `claim` is the key of its claim, `source` the field with its volume source; `gone` means released, failed or in
    deletion. `driver` and `handle` identify it to the attacher and are empty if it does not need attaching.
    """

    name: str
    capacity_bytes: int = 0
    modes: tuple[str, ...] = ()
    storage_class: str = ""
    block: bool = False
    labels: dict[str, str] = {}
    terms: tuple[NodeTerm, ...] | None = None
    zones: tuple[Expression, ...] = ()
    claim: str = ""
    claim_uid: str = ""
    gone: bool = False
    source: str = ""
    driver: str = ""
    handle: str = ""


class VolumeClaim(msgspec.Struct, frozen=True):
    """Persistent volume claim.

    `volume` is the volume to which the claim is bound, and `wanted` a volume that the claim names but is not bound to
    yet. `selected_node` is the node of a volume that is being provisioned. `lost` means that its volume was deleted;
    `deleting` means that the claim is being deleted.
    """

    namespace: str
    name: str
    asks: ClaimRequest
    uid: str = ""
    volume: str = ""
    wanted: str = ""
    selected_node: str = ""
    lost: bool = False
    deleting: bool = False

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


class StorageClass(msgspec.Struct, frozen=True):
    """Storage class. `waits` means WaitForFirstConsumer binding; `default` marks the cluster's default class."""

    provisioner: str
    waits: bool = False
    default: bool = False
    topologies: tuple[NodeTerm, ...] = ()

    @property
    def makes(self) -> bool:
        """Return whether volumes of this class are provisioned on demand."""
        return self.provisioner != NO_PROVISIONER


class Storage(msgspec.Struct, frozen=True):
    """All volumes and classes by name, all claims by `namespace/name`."""

    volumes: dict[str, PersistentVolume] = {}
    claims: dict[str, VolumeClaim] = {}
    classes: dict[str, StorageClass] = {}

    def __bool__(self) -> bool:
        return bool(self.volumes or self.claims or self.classes)

    def united_with(self, other: Storage) -> Storage:
        """Return the union of these objects and those of `other`."""
        return Storage(
            {**other.volumes, **self.volumes}, {**other.claims, **self.claims}, {**other.classes, **self.classes}
        )
