"""Anonymised volumes, claims and storage classes."""

from __future__ import annotations

from hetsched.contracts.objects.storage import PersistentVolume, Storage, StorageClass, VolumeClaim

from . import well_known
from .names import NameAnonymizer, one_of, renamed
from .realms import CLAIM, CLASS, HANDLE, VOLUME


class VolumeAnonymizer:
    """Renames storage."""

    def __init__(self, names: NameAnonymizer) -> None:
        self._names = names

    def storage(self, storage: Storage) -> Storage:
        return Storage(
            volumes={self._names.of(VOLUME, name): self._volume(found) for name, found in storage.volumes.items()},
            claims={self._names.key_of(CLAIM, key): self._claim(found) for key, found in storage.claims.items()},
            classes={
                self._names.of(CLASS, name): self._storage_class(found) for name, found in storage.classes.items()
            },
        )

    def _volume(self, volume: PersistentVolume) -> PersistentVolume:
        return PersistentVolume(
            name=self._names.of(VOLUME, volume.name),
            capacity_bytes=volume.capacity_bytes,
            modes=volume.modes,
            storage_class=self._names.of(CLASS, volume.storage_class),
            block=volume.block,
            labels=self._names.labels(volume.labels),
            terms=None if volume.terms is None else renamed(self._names.node_term, volume.terms),
            zones=renamed(self._names.expression, volume.zones),
            claim=self._names.key_of(CLAIM, volume.claim),
            claim_uid=self._names.uid(volume.claim_uid),
            gone=volume.gone,
            source=one_of(volume.source, ("", *well_known.VOLUME_SOURCES), other="csi") or "",
            driver=self._names.driver(volume.driver),
            handle=self._names.of(HANDLE, volume.handle),
        )

    def _claim(self, claim: VolumeClaim) -> VolumeClaim:
        return VolumeClaim(
            namespace=self._names.namespace(claim.namespace),
            name=self._names.of(CLAIM, claim.name),
            asks=self._names.asks(claim.asks),
            uid=self._names.uid(claim.uid),
            volume=self._names.of(VOLUME, claim.volume),
            wanted=self._names.of(VOLUME, claim.wanted),
            selected_node=self._names.node(claim.selected_node),
            lost=claim.lost,
            deleting=claim.deleting,
        )

    def _storage_class(self, found: StorageClass) -> StorageClass:
        return StorageClass(
            provisioner=self._names.driver(found.provisioner),
            waits=found.waits,
            default=found.default,
            topologies=renamed(self._names.node_term, found.topologies),
        )
