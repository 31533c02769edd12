"""Leases on cluster rows: the process that schedules a cluster, and the process that watches it.

A lease is acquired by compare-and-set when it is free or expired by the database's clock; acquiring it increments the
epoch. Writes under a lease contain its epoch, so a holder that was suspended until after its lease expired cannot write
any more. `leading` is the lease for decisions, `following` for the watch of a live cluster, `discovering` for
publishing node facts in the cluster, and `reporting` for publishing decisions on its pods.
Invariant: an epoch belongs to one holder forever.
"""

from __future__ import annotations

import time
import uuid
from datetime import timedelta
from typing import Any

import msgspec
from django.conf import settings
from django.db.models import F, Model, Q, QuerySet
from django.db.models.functions import Now

from hetsched.inventory.models import Cluster, Connection

EPOCHS_LEFT_OUT = 1_000_000
_LONGEST_SECONDS = 300  # the maximum value of HETSCHED_LEASE_SECONDS


class Lease(msgspec.Struct, frozen=True):
    """The right to act for one cluster under one epoch."""

    cluster_id: int
    epoch: int


class Leases:
    """One kind of lease, stored in three columns of a row per cluster: `<name>_epoch`, `<name>_id`, `<name>_until`."""

    def __init__(self, model: type[Model], name: str) -> None:
        self._rows = model._default_manager.all
        self._epoch, self._id, self._until = f"{name}_epoch", f"{name}_id", f"{name}_until"

    def take(self, cluster_id: int, holder: str) -> Lease | None:
        """Acquire the lease, or return None while another process holds it."""
        free = self._rows().filter(self._is_free(), pk=cluster_id).order_by()
        epoch = free.values_list(self._epoch, flat=True).first()
        if epoch is None:
            return None
        columns = {self._epoch: epoch + 1, self._id: holder[:120], self._until: _end()}
        taken = free.filter(**{self._epoch: epoch}).update(**columns)
        return Lease(cluster_id, epoch + 1) if taken else None

    def renew(self, lease: Lease) -> bool:
        """Renew the lease; return False if another holder has acquired it."""
        return bool(self._own(lease).update(**{self._until: _end()}))

    def release(self, lease: Lease, **columns: Any) -> None:
        """Release the lease early, and write `columns` of its row; the lease of another holder is not changed."""
        self._own(lease).update(**{self._until: None, self._id: ""}, **columns)

    def is_held(self, cluster_id: int) -> bool:
        """Return True if any process holds the lease."""
        return self._rows().filter(~self._is_free(), pk=cluster_id).exists()

    def _is_free(self) -> Q:
        """Return the condition for a free lease.

        If a lease ends later than now plus the maximum duration, the database's clock was set back after it was
        acquired. Such a lease is treated as free.
        """
        late = Now() + timedelta(seconds=_LONGEST_SECONDS)
        return Q(**{self._until: None}) | Q(**{f"{self._until}__lt": Now()}) | Q(**{f"{self._until}__gt": late})

    def _own(self, lease: Lease) -> QuerySet[Any]:
        return self._rows().filter(pk=lease.cluster_id, **{self._epoch: lease.epoch})


class HeldLease:
    """A lease that was just acquired, and that its holder renews at a third of its duration."""

    def __init__(self, leases: Leases, lease: Lease) -> None:
        self._leases = leases
        self._lease = lease
        self._renewed_at = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Return True if the lease must be renewed now."""
        return time.monotonic() - self._renewed_at > settings.HETSCHED_LEASE_SECONDS / 3

    def renew(self, *, only_if_due: bool = False) -> bool:
        """Renew the lease, or only if it is due; return False if another holder has acquired it."""
        if only_if_due and not self.is_due:
            return True
        self._renewed_at = time.monotonic()
        return self._leases.renew(self._lease)


def _end() -> Any:
    """Return the end of a lease that is acquired or renewed now, by the database's clock."""
    return Now() + timedelta(seconds=settings.HETSCHED_LEASE_SECONDS)


def end_all() -> None:
    """End every lease in a database restored from a backup, and skip epochs that may have been used already.

    Epochs that were used after the backup are not in the restored rows. In the leader election of a cluster, the
    restored database is a different installation, which waits while the previous installation is active.
    """
    for model, name in _STORED:
        epoch = f"{name}_epoch"
        model._default_manager.update(**{epoch: F(epoch) + EPOCHS_LEFT_OUT, f"{name}_id": "", f"{name}_until": None})
    for connection in Connection.objects.only("pk"):
        Connection.objects.filter(pk=connection.pk).update(installation=uuid.uuid4())


_STORED: tuple[tuple[type[Model], str], ...] = (
    (Cluster, "leader"), (Connection, "follower"), (Connection, "discoverer"), (Connection, "reporter"),
)  # fmt: skip
leading, following, discovering, reporting = (Leases(model, name) for model, name in _STORED)
