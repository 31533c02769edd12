"""Who decides for a cluster.

Rule: a lease on the cluster's row, taken by compare-and-set when nobody holds it or it is over by the database's clock;
taking it raises the epoch. Every batch is written under the epoch, so a leader that slept through its lease can no
longer write anything, whatever it believes.
Invariant: an epoch belongs to one holder for ever.
"""

from __future__ import annotations

from datetime import timedelta

import msgspec
from django.conf import settings
from django.db.models import F, Q
from django.db.models.functions import Now

from .models import Cluster


class Lease(msgspec.Struct, frozen=True):
    """The right to decide for one cluster under one epoch."""

    cluster_id: int
    epoch: int


def _seconds() -> timedelta:
    return timedelta(seconds=settings.HETSCHED_LEASE_SECONDS)


def take(cluster_id: int, holder: str) -> Lease | None:
    """Take the lease, or return None while somebody else holds it."""
    free = Q(leader_until=None) | Q(leader_until__lt=Now())
    row = Cluster.objects.filter(free, pk=cluster_id)
    epoch = row.values_list("leader_epoch", flat=True).first()
    if epoch is None:
        return None
    taken = row.filter(leader_epoch=epoch).update(
        leader_epoch=F("leader_epoch") + 1, leader_id=holder[:120], leader_until=Now() + _seconds()
    )
    return Lease(cluster_id, epoch + 1) if taken else None


def renew(lease: Lease) -> bool:
    """Prolong the lease; False when another leader took over."""
    own = Cluster.objects.filter(pk=lease.cluster_id, leader_epoch=lease.epoch)
    return own.update(leader_until=Now() + _seconds()) == 1


def give_up(lease: Lease) -> None:
    """End the lease early; somebody else's is left alone."""
    Cluster.objects.filter(pk=lease.cluster_id, leader_epoch=lease.epoch).update(leader_until=None, leader_id="")


def is_led(cluster_id: int) -> bool:
    """Tell whether a leader's lease runs."""
    return Cluster.objects.filter(pk=cluster_id, leader_until__gte=Now()).exists()
