"""Volumes of the claims of pods, and attachments per node.

Two pods that are scheduled one after the other must not get the same volume before the cluster records the first
binding. A claim is
    bound        it has a volume, or a placed pod chose one for it;
    waiting      its class waits for the first consumer: the smallest free volume that suits it is chosen, and if there
                 is none the class provisions one, on nodes of its allowed topologies;
    refused      in all other cases; `resolve_claim` returns the reason.
A volume suits a claim of its class if it has the bytes and the access modes that the claim requests, and matches the
selector of the claim. A volume that references a claim suits only that claim. The claims of one pod choose volumes in
the order of size, as in kube-scheduler. An attachment is identified by the driver and the handle of the volume or,
before the volume is provisioned, the name of the claim.
Source: kube-scheduler's VolumeBinding, VolumeZone and NodeVolumeLimits plugins; component-helpers/storage/volume.
Invariants: choices and attachments depend only on the placed pods; a cluster without claims has no overhead.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.documents import encode
from hetsched.contracts.message import Message
from hetsched.contracts.objects.allocation import Allocation
from hetsched.contracts.objects.labels import selects
from hetsched.contracts.objects.node_constraints import Expression
from hetsched.contracts.objects.storage import (
    BETA_ZONES,
    MIGRATED_SOURCES,
    PersistentVolume,
    Storage,
    StorageClass,
    VolumeClaim,
)
from hetsched.contracts.objects.workload import ClaimUse, PodSpec
from hetsched.engine.framework.status import Refusal

from .columns import Bools
from .placed_pod import PlacedPod
from .selectors import nodes_named, nodes_of_terms, nodes_with
from .state_view import StateView

ONE_POD = "ReadWriteOncePod"

K = TypeVar("K")
J = TypeVar("J")
V = TypeVar("V")
Attachment = tuple[str, str]  # driver, and handle of the volume or name of the claim


class PendingClaim(NamedTuple):
    """A claim that waits for its first consumer: candidate volumes, smallest first, and the provisioning class."""

    claim: VolumeClaim
    volumes: tuple[PersistentVolume, ...]
    provisioner: StorageClass | None


class VolumeState:
    """The storage of a cluster state: inventory, users of each claim, chosen volumes and attachments."""

    __slots__ = ("attached", "chosen", "claim_of_volume", "digest", "storage", "users")

    def __init__(self, storage: Storage | None = None) -> None:
        self.storage = storage or Storage()
        self.digest = _digest(self.storage)
        self.users: dict[str, dict[str, int]] = {}  # claim -> pod -> row
        self.chosen: dict[str, dict[str, str]] = {}  # claim -> pod -> chosen volume, equal for all pods
        self.claim_of_volume: dict[str, str] = {}  # volume -> the claim it was chosen for
        self.attached: dict[Attachment, dict[int, int]] = {}  # row -> number of pods

    def add(self, more: Storage) -> None:
        """Add the storage of new pods, without replacing existing entries or claims that placed pods use."""
        claims = {key: claim for key, claim in more.claims.items() if key not in self.users}
        self.storage = self.storage.united_with(Storage(more.volumes, claims, more.classes))
        self.digest = _digest(self.storage)

    def copy(self) -> VolumeState:
        other = object.__new__(VolumeState)
        other.storage, other.digest, other.claim_of_volume = self.storage, self.digest, dict(self.claim_of_volume)
        other.users = {claim: dict(pods) for claim, pods in self.users.items()}
        other.chosen = {claim: dict(pods) for claim, pods in self.chosen.items()}
        other.attached = {what: dict(rows) for what, rows in self.attached.items()}
        return other

    # -- claims of pods --------------------------------------------------------------------------------------------

    def claim(self, pod: PodSpec, use: ClaimUse) -> VolumeClaim | None:
        """Return the claim that a pod uses.

        If the claim does not exist, returns a new claim from the pod's template, or None if there is no template.
        """
        found = self.storage.claims.get(f"{pod.namespace}/{use.name}")
        if found is None and use.template is not None:
            return VolumeClaim(pod.namespace, use.name, use.template)
        return found

    def volume_of(self, claim: VolumeClaim) -> str:
        """Return the name of the volume that a claim is bound to or that was chosen for it, empty if there is none."""
        return claim.volume or next(iter(self.chosen.get(claim.key, {}).values()), "")

    def resolve_claim(self, pod: PodSpec, use: ClaimUse) -> PersistentVolume | PendingClaim | Refusal:
        """Return the volume of a bound claim, the candidates of a waiting claim, or the reason to refuse the claim."""
        claim = self.claim(pod, use)
        if claim is None:
            return _refused("VolumeClaimMissing", Message("there is no claim {claim}", claim=use.name), use.name)
        if claim.deleting:
            return _refused("VolumeClaimDeleting", Message("claim {claim} is being deleted", claim=use.name), use.name)
        if claim.lost:
            return _refused("VolumeLost", Message("claim {claim} has lost its volume", claim=use.name), use.name)
        name = self.volume_of(claim)
        if name:
            volume = self.storage.volumes.get(name)
            if volume is None:
                message = Message(
                    "claim {claim} is bound to volume {volume}, which does not exist", claim=use.name, volume=name
                )
                return _refused("VolumeMissing", message, name)
            if volume.source in MIGRATED_SOURCES:
                field = f"PersistentVolume {name}: spec.{volume.source}"
                message = Message("scheduling by {text} is not supported", text=field)
                return Refusal("FeatureNotSupported", message, field=field, verdict=Verdict.MISCONFIGURED)
            return volume
        return self._pending_claim(use, claim)

    def _pending_claim(self, use: ClaimUse, claim: VolumeClaim) -> PendingClaim | Refusal:
        wanted = self._class_name(claim)
        if not wanted:
            return _refused(
                "VolumeNotBound", Message("claim {claim} is not bound to a volume yet", claim=use.name), use.name
            )
        kind = self.storage.classes.get(wanted)
        if kind is None:
            message = Message(
                "claim {claim} uses storage class {name}, which does not exist", claim=use.name, name=wanted
            )
            return _refused("StorageClassMissing", message, wanted)
        if not kind.waits or claim.wanted:
            return _refused(
                "VolumeNotBound", Message("claim {claim} is not bound to a volume yet", claim=use.name), use.name
            )
        found = [v for v in self.storage.volumes.values() if v.storage_class == wanted and self._fits_claim(v, claim)]
        found.sort(key=lambda volume: (not volume.claim, volume.capacity_bytes, volume.name))
        if found and found[0].claim:
            return PendingClaim(claim, (found[0],), None)
        makes = kind.makes and claim.asks.selector is None
        return PendingClaim(claim, tuple(found), kind if makes else None)

    def _class_name(self, claim: VolumeClaim) -> str:
        if claim.asks.storage_class is not None:
            return claim.asks.storage_class
        return next((name for name, kind in sorted(self.storage.classes.items()) if kind.default), "")

    def _fits_claim(self, volume: PersistentVolume, claim: VolumeClaim) -> bool:
        asks = claim.asks
        if (
            volume.gone
            or volume.source in MIGRATED_SOURCES
            or self.claim_of_volume.get(volume.name, claim.key) != claim.key
        ):
            return False
        if volume.claim and (volume.claim != claim.key or volume.claim_uid not in ("", claim.uid)):
            return False
        return (
            volume.capacity_bytes >= asks.request_bytes
            and volume.block == asks.block
            and set(asks.modes) <= set(volume.modes)
            and (asks.selector is None or selects(asks.selector, volume.labels))
        )

    def other_users(self, pod: PodSpec, use: ClaimUse) -> set[int]:
        """Return the rows of other pods that use a ReadWriteOncePod claim; empty for other claims."""
        claim = self.claim(pod, use)
        if claim is None or ONE_POD not in claim.asks.modes:
            return set()
        return {row for key, row in self.users.get(claim.key, {}).items() if key != pod.key}

    # -- placed pods -----------------------------------------------------------------------------------------------

    def charge(self, placed: PlacedPod, sign: int) -> None:
        """Record the claims, chosen volumes and attachments of a placed pod (`sign` 1), or remove them (-1)."""
        pod, row = placed.pod, placed.row
        granted = {grant.claim: grant.volume for grant in placed.allocation.volumes}
        for use in pod.shape.claims:
            key = f"{pod.namespace}/{use.name}"
            if sign > 0:
                self.users.setdefault(key, {})[pod.key] = row
            else:
                _drop(self.users, key, pod.key)
            if use.name in granted:
                self._choose(key, pod.key, granted[use.name], sign)
        for what in set(self.attachments(pod, placed.allocation)):
            rows = self.attached.setdefault(what, {})
            rows[row] = rows.get(row, 0) + sign
            if not rows[row]:
                _drop(self.attached, what, row)

    def _choose(self, claim: str, pod: str, volume: str, sign: int) -> None:
        if sign > 0:
            self.chosen.setdefault(claim, {})[pod] = volume
            self.claim_of_volume[volume] = claim
        else:
            _drop(self.chosen, claim, pod)
            if claim not in self.chosen:
                self.claim_of_volume.pop(volume, None)

    def attachments(self, pod: PodSpec, allocation: Allocation) -> Iterator[Attachment]:
        """Yield the attachments that a pod with `allocation` needs on its node."""
        granted = {grant.claim: grant.volume for grant in allocation.volumes}
        for use in pod.shape.claims:
            claim = self.claim(pod, use)
            if claim is None:
                continue
            volume = self.storage.volumes.get(claim.volume or granted.get(use.name, ""))
            if volume is not None:
                if volume.driver:
                    yield volume.driver, volume.handle
            elif (kind := self.storage.classes.get(self._class_name(claim))) is not None and kind.makes:
                yield kind.provisioner, claim.key


def _digest(storage: Storage) -> bytes:
    return blake2b(encode(storage, order="sorted"), digest_size=12).digest()


def _drop(table: dict[K, dict[J, V]], key: K, inner: J) -> None:
    """Remove an entry from a nested table, and the inner table if it becomes empty."""
    held = table.get(key, {})
    held.pop(inner, None)
    if not held:
        table.pop(key, None)


def _refused(code: str, message: Message, *missing: str) -> Refusal:
    return Refusal(code, message, missing, verdict=Verdict.NOT_NOW)


class _StorageState(StateView, Protocol):
    volumes: VolumeState


def nodes_of_volume(state: StateView, volume: PersistentVolume) -> Bools:
    """Return the (N,) mask of nodes that can use a volume by its node affinity, its zone and its region."""

    def find() -> Bools:
        fits: Bools = np.ones(len(state.reports), np.bool_)
        if volume.terms is not None:
            fits &= nodes_of_terms(state, volume.terms)
        if volume.zones:
            fits &= _in_zones(state, volume.zones)
        return fits

    return state.once(("volume", volume.name), find)


def _in_zones(state: StateView, zones: tuple[Expression, ...]) -> Bools:
    """Return the (N,) mask of nodes that match the zone labels of a volume; without labels all match."""
    labelled: Bools = np.zeros(len(state.reports), np.bool_)
    fits: Bools = np.ones(len(state.reports), np.bool_)
    for key, beta in BETA_ZONES.items():
        labelled |= (state.label(key)[0] >= 0) | (state.label(beta)[0] >= 0)
    for zone in zones:
        older = Expression(BETA_ZONES.get(zone.key, zone.key), zone.operator, zone.values)
        fits &= nodes_with(state, zone) | nodes_with(state, older)
    return fits | ~labelled


def provisionable_nodes(state: StateView, waiting: PendingClaim) -> Bools:
    """Return the (N,) mask of nodes on which a volume could be provisioned for a claim."""
    nowhere: Bools = np.zeros(len(state.reports), np.bool_)
    if waiting.provisioner is None:
        return nowhere
    topologies = waiting.provisioner.topologies
    return nodes_of_terms(state, topologies) if topologies else ~nowhere


def nodes_of_selected_volume(state: _StorageState, claim: VolumeClaim) -> Bools | None:
    """Return the (N,) mask of the nodes selected for provisioning the claim's volume, or None if none are selected."""
    users = state.volumes.users.get(claim.key, {})
    if claim.selected_node:
        return nodes_named(state, Expression("metadata.name", "In", (claim.selected_node,)))
    if not users or state.volumes.volume_of(claim):
        return None
    rows: Bools = np.zeros(len(state.reports), np.bool_)
    rows[list(users.values())] = True
    return rows


def choose(state: StateView, claims: list[PendingClaim], row: int) -> dict[str, str] | None:
    """Choose a volume for each of a pod's unbound claims on the node at `row`.

    Returns a mapping from claim name to volume name. An empty volume name means that the volume is to be provisioned.
    Returns None if some claim has neither a free volume nor a storage class that can provision one on this node.
    """
    found: dict[str, str] = {}
    for waiting in sorted(claims, key=lambda waiting: waiting.claim.asks.request_bytes):
        volumes = () if waiting.claim.selected_node and waiting.provisioner else waiting.volumes
        free = (v.name for v in volumes if v.name not in found.values() and nodes_of_volume(state, v)[row])
        name = next(free, None)
        if name is None and not provisionable_nodes(state, waiting)[row]:
            return None
        found[waiting.claim.name] = name or ""
    return found
