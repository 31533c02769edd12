"""Devices that a node's device plugin allocated to pods, with the devices reserved for these pods.

Each pod with GPUs on a node whose agent reports device allocations has one row. `granted` contains the GPUs of the
decision. `cards` contains the indices of the allocated GPUs, or None if none are allocated yet or they cannot be
identified. If `advisory` is True, another device plugin chooses the GPUs, so `granted` is advice until `cards` contains
the result.
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from hetsched.contracts.objects.allocation import CardGrant
from hetsched.inventory.models import Node
from hetsched.storage.json_fields import StructField
from hetsched.storage.message_field import MessageField


class DevicePluginAllocation(models.Model):
    """The GPUs that a node allocated to one pod."""

    pod = models.OneToOneField(
        "placement.Pod", on_delete=models.CASCADE, related_name="device_allocation", verbose_name=_("pod")
    )
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="+", verbose_name=_("node"))
    # The reservation that this row describes; `granted` is replaced once the pod is scheduled again.
    reservation = models.BigIntegerField(editable=False)
    advisory = models.BooleanField(_("advisory"))
    granted = StructField(tuple[CardGrant, ...], verbose_name=_("granted"), default=tuple)
    cards = StructField(tuple[int, ...], verbose_name=_("allocated"), null=True)
    problem = MessageField(_("problem"), blank=True)
    seen_at = models.DateTimeField(_("seen at"))

    class Meta:
        db_table = "placement_handedout"
        verbose_name = _("device allocation")
        verbose_name_plural = _("device allocations")
        indexes = [models.Index(fields=["node"], name="placement_handed_out_node")]

    def __str__(self) -> str:
        return f"{self.pod_id}: {self.cards}"
