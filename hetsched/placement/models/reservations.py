"""Reservations: one per pod, with its GPUs, CPUs and devices.

Partial unique indexes admit one active reservation per pod and one exclusive holder per GPU, CPU and device, so the
database enforces exclusivity after any crash or race.
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from hetsched.contracts.message import Message
from hetsched.contracts.objects.allocation import Allocation
from hetsched.contracts.objects.workload import PodSpec
from hetsched.inventory.models import Cluster, Node
from hetsched.storage.json_fields import StructField

# Release reasons of a reservation that is continued by another reservation of the same pod at the same revision.
IN_PLACE, OTHER_CARDS = "the pod changed in place", Message("its node gave it other cards")
CONTINUED = (IN_PLACE, OTHER_CARDS)
_continued = models.Q(release_reason__in=CONTINUED)


class Reservation(models.Model):
    """The resources that a pod holds on a node, from one cluster revision to another."""

    pod = models.ForeignKey(
        "placement.Pod", on_delete=models.CASCADE, related_name="reservations", verbose_name=_("pod")
    )
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="reservations", verbose_name=_("node"))
    cluster = models.ForeignKey(
        Cluster, on_delete=models.CASCADE, related_name="+", verbose_name=_("cluster"), db_index=False
    )
    requests = StructField(dict[str, int], verbose_name=_("requests"), default=dict)
    allocation = StructField(Allocation, verbose_name=_("allocation"))
    # The pod's request during this reservation, if it changed since the decision: see `in_place`.
    spec = StructField(PodSpec, verbose_name=_("request after an in-place change"), null=True)
    active = models.BooleanField(_("active"), default=True)
    revision = models.BigIntegerField(_("since revision"))
    released_revision = models.BigIntegerField(_("until revision"), null=True)
    leader_epoch = models.BigIntegerField(_("leader epoch"), default=0)
    created_at = models.DateTimeField(_("created"))
    released_at = models.DateTimeField(_("released"), null=True)
    release_reason = models.CharField(_("release reason"), max_length=60, blank=True)

    class Meta:
        verbose_name = _("reservation")
        verbose_name_plural = _("reservations")
        constraints = [
            models.UniqueConstraint(
                fields=["pod"], condition=models.Q(active=True), name="placement_reservation_one_active"
            )
        ]
        indexes = [
            models.Index(fields=["cluster", "revision"], name="placement_reservation_since"),
            models.Index(fields=["cluster", "released_revision"], name="placement_reservation_until"),
            models.Index(fields=["node"], name="placement_reservation_node", condition=models.Q(active=True)),
            models.Index(fields=["cluster", "released_at"], name="placement_reservation_went_on", condition=_continued),
        ]

    def __str__(self) -> str:
        return f"{self.pod_id} on {self.node_id}"

    @property
    def gpu_milli(self) -> int:
        """Thousandths of GPUs that the pod holds."""
        return self.allocation.gpu_milli

    @property
    def request(self) -> PodSpec:
        """The pod's spec during this reservation."""
        found: PodSpec = self.pod.spec if self.spec is None else self.spec
        return found


class ReservedCard(models.Model):
    """A GPU, or a share of it, that a reservation holds."""

    reservation = models.ForeignKey(Reservation, on_delete=models.CASCADE, related_name="cards")
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="+")
    card_index = models.IntegerField()
    card_uuid = models.CharField(max_length=120, blank=True)
    milli = models.IntegerField()
    memory_mib = models.BigIntegerField()
    exclusive = models.BooleanField()
    active = models.BooleanField(default=True)

    class Meta:
        indexes = [models.Index(fields=["node", "card_index"], name="placement_card", condition=models.Q(active=True))]
        constraints = [
            models.UniqueConstraint(
                fields=["node", "card_index"],
                condition=models.Q(active=True, exclusive=True),
                name="placement_card_one_holder",
            ),
            models.UniqueConstraint(
                fields=["node", "card_uuid"],
                condition=models.Q(active=True, exclusive=True) & ~models.Q(card_uuid=""),
                name="placement_card_uuid_one_holder",
            ),
        ]

    def __str__(self) -> str:
        return f"card {self.card_index}: {self.milli}/1000"


class ReservedCpu(models.Model):
    """One CPU that a reservation holds."""

    reservation = models.ForeignKey(Reservation, on_delete=models.CASCADE, related_name="cpus")
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="+")
    cpu = models.IntegerField()
    exclusive = models.BooleanField()
    active = models.BooleanField(default=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["node", "cpu"], condition=models.Q(active=True, exclusive=True), name="placement_cpu_one_holder"
            )
        ]

    def __str__(self) -> str:
        return f"cpu {self.cpu}"


class ReservedDevice(models.Model):
    """One device that a reservation holds for a resource claim of its pod.

    Shares of a device and devices with admin access have no row, because they do not exclude other holders.
    """

    reservation = models.ForeignKey(Reservation, on_delete=models.CASCADE, related_name="devices")
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="+")
    claim = models.CharField(max_length=253)
    driver = models.CharField(max_length=63)
    pool = models.CharField(max_length=253)
    device = models.CharField(max_length=63)
    active = models.BooleanField(default=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["cluster", "driver", "pool", "device"],
                condition=models.Q(active=True),
                name="placement_device_one_holder",
            )
        ]

    def __str__(self) -> str:
        return f"device {self.driver}/{self.pool}/{self.device}"
