"""Who decides for a cluster, and who follows it.

Rule: a lease on a row, taken by compare-and-set when nobody holds it or it is over by the database's clock; taking it
raises the epoch. What is written under a lease names its epoch, so a holder that slept through its lease can no longer
write anything, whatever it believes. `leading` is about deciding, `following` about a live cluster's watch,
`discovering` about writing there what its nodes are.
Invariant: an epoch belongs to one holder for ever.
"""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import msgspec
from django.conf import settings
from django.db.models import F, Model, Q
from django.db.models.functions import Now

from .models import Cluster, Connection

EPOCHS_LEFT_OUT = 1_000_000
_LONGEST_SECONDS = 300  # as HETSCHED_LEASE_SECONDS at most is


class Lease(msgspec.Struct, frozen=True):
    """The right to act for one cluster under one epoch."""

    cluster_id: int
    epoch: int


class Leases:
    """One kind of lease, kept in three columns of a row per cluster: `<name>_epoch`, `<name>_id`, `<name>_until`."""

    def __init__(self, model: type[Model], name: str) -> None:
        self._rows = model._default_manager.all
        self._epoch, self._id, self._until = f"{name}_epoch", f"{name}_id", f"{name}_until"

    def take(self, cluster_id: int, holder: str) -> Lease | None:
        """Take the lease, or return None while somebody else holds it."""
        row = self._rows().filter(self._is_free(), pk=cluster_id)
        epoch = row.values_list(self._epoch, flat=True).first()
        if epoch is None:
            return None
        held = {self._epoch: F(self._epoch) + 1, self._id: holder[:120], self._until: Now() + _seconds()}
        taken = row.filter(**{self._epoch: epoch}).update(**held)
        return Lease(cluster_id, epoch + 1) if taken else None

    def renew(self, lease: Lease) -> bool:
        """Prolong the lease; False when another holder took over."""
        return self._own(lease).update(**{self._until: Now() + _seconds()}) == 1

    def give_up(self, lease: Lease) -> None:
        """End the lease early; somebody else's is left alone."""
        self._own(lease).update(**{self._until: None, self._id: ""})

    def is_held(self, cluster_id: int) -> bool:
        """Tell whether somebody's lease runs."""
        return self._rows().filter(~self._is_free(), pk=cluster_id).exists()

    def _is_free(self) -> Q:
        """A lease that ends later than any may was taken before the database's clock was set back: nobody has it."""
        late = Now() + timedelta(seconds=_LONGEST_SECONDS)
        return Q(**{self._until: None}) | Q(**{f"{self._until}__lt": Now()}) | Q(**{f"{self._until}__gt": late})

    def _own(self, lease: Lease) -> Any:
        return self._rows().filter(pk=lease.cluster_id, **{self._epoch: lease.epoch})


def end_all() -> None:
    """End every lease and leave a gap in the epochs, in a database that a backup was read into.

    Whoever held one since the backup was taken wrote epochs that these rows know nothing of. To the clusters this is
    another installation, which waits while the one of before is still about.
    """
    for model, name in ((Cluster, "leader"), (Connection, "follower"), (Connection, "discoverer")):
        epoch = f"{name}_epoch"
        model._default_manager.update(**{epoch: F(epoch) + EPOCHS_LEFT_OUT, f"{name}_id": "", f"{name}_until": None})
    for connection in Connection.objects.only("pk"):
        Connection.objects.filter(pk=connection.pk).update(installation=uuid.uuid4())


def _seconds() -> timedelta:
    return timedelta(seconds=settings.HETSCHED_LEASE_SECONDS)


leading = Leases(Cluster, "leader")
following = Leases(Connection, "follower")
discovering = Leases(Connection, "discoverer")
