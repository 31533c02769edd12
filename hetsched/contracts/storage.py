"""Persistent storage: the volumes there are, the claims on them, and the classes that volumes are made by.

Rule: facts as the objects state them, sizes in bytes. Where a volume can be used stands in `terms` (its node affinity)
and `zones` (its zone and region labels, under their present keys). A claim of a pod that nobody made yet is what the
pod's own template asks for.
Source: Kubernetes core/v1 PersistentVolume and PersistentVolumeClaim, storage.k8s.io/v1 StorageClass.
"""

from __future__ import annotations

import msgspec

from .workload import ClaimRequest, Expression, NodeTerm

NO_PROVISIONER = "kubernetes.io/no-provisioner"
# Volume sources that Kubernetes hands to a CSI driver behind the object's back.
MIGRATED_SOURCES = (
    "awsElasticBlockStore", "azureDisk", "azureFile", "cinder", "gcePersistentDisk", "portworxVolume", "vsphereVolume",
)  # fmt: skip

BETA_ZONES = {
    "topology.kubernetes.io/zone": "failure-domain.beta.kubernetes.io/zone",
    "topology.kubernetes.io/region": "failure-domain.beta.kubernetes.io/region",
}


class PersistentVolume(msgspec.Struct, frozen=True):
    """A volume. `claim` is the key of the claim it is for, `source` the field that says what it is, `gone` means that
    it is released, failed or on its way out. `driver` and `handle` name it to what attaches it, empty where nothing is.
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
    """A claim. `volume` is the one it is bound to, `wanted` one that it names and does not have yet; `selected_node` is
    where a volume is being made for it; `lost`: its volume is gone; `deleting`: the claim itself goes.
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
    """How volumes of a class come to be. `waits`: not before a pod has a node; `default`: for claims that name none."""

    provisioner: str
    waits: bool = False
    default: bool = False
    topologies: tuple[NodeTerm, ...] = ()

    @property
    def makes(self) -> bool:
        """Tell whether volumes of this class are made when they are asked for."""
        return self.provisioner != NO_PROVISIONER


class Storage(msgspec.Struct, frozen=True):
    """All volumes and classes by name, all claims by `namespace/name`."""

    volumes: dict[str, PersistentVolume] = {}
    claims: dict[str, VolumeClaim] = {}
    classes: dict[str, StorageClass] = {}

    def __bool__(self) -> bool:
        return bool(self.volumes or self.claims or self.classes)

    def beside(self, other: Storage) -> Storage:
        """Return this and what `other` has besides it."""
        return Storage(
            {**other.volumes, **self.volumes}, {**other.claims, **self.claims}, {**other.classes, **self.classes}
        )
