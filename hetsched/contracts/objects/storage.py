"""Persistent storage: volumes, claims on them, and storage classes.

The structs hold facts as the objects state them, sizes in bytes. The node constraints of a volume are in `terms` (its
node affinity) and `zones` (its zone and region labels, under their present keys). A claim that does not exist yet has
the request of the pod's own template.
Source: Kubernetes core/v1 PersistentVolume and PersistentVolumeClaim, storage.k8s.io/v1 StorageClass.
"""

from __future__ import annotations

import msgspec

from .workload import ClaimRequest, Expression, NodeTerm

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
    """Volume. `claim` is the key of its claim, `source` the field with its volume source, `gone` means released, failed

    or in deletion. `driver` and `handle` identify it to the attacher, empty if it needs no attaching.
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
    """Claim. `volume` is its bound volume, `wanted` a volume that it names and is not bound to yet; `selected_node` is

    the node of a volume in provisioning; `lost`: its volume is deleted; `deleting`: the claim is being deleted.
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
    """Storage class. `waits`: WaitForFirstConsumer binding; `default`: for claims that name none."""

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
        """Return these objects and the additional ones of `other`."""
        return Storage(
            {**other.volumes, **self.volumes}, {**other.claims, **self.claims}, {**other.classes, **self.classes}
        )
