"""Cached registry lookups of a cluster's images.

One row per image that pods of a cluster have used. The content of a digest never changes and is read once. A tag is
read again after a while if pending pods use it. A failed lookup is retried with increasing delays, and the previously
read platforms stay in use until then. Rows are kept per cluster, because pull secrets belong to one cluster.
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from hetsched.storage.message_field import MessageField


class ImageIndex(models.Model):
    """Lookup result of one image. If `wanted`, the image is due for a lookup at `not_before`.

    `secrets` lists the pull secrets of the image as `namespace/name`.
    """

    cluster = models.ForeignKey(
        "inventory.Cluster", on_delete=models.CASCADE, related_name="images", verbose_name=_("cluster")
    )
    reference = models.CharField(_("image"), max_length=600)
    digest = models.CharField(_("digest"), max_length=140, blank=True)
    platforms = models.JSONField(_("platforms"), default=list)
    read_at = models.DateTimeField(_("read at"), null=True)
    code = models.CharField(_("failure"), max_length=60, blank=True)
    message = MessageField(_("read failure"), blank=True)
    attempts = models.IntegerField(_("failures in a row"), default=0)
    wanted = models.BooleanField(_("wanted"), default=True)
    wanted_at = models.DateTimeField(_("requested at"))
    not_before = models.DateTimeField(_("not before"))
    secrets = models.JSONField(_("pull secrets"), default=list)

    class Meta:
        verbose_name = _("image")
        verbose_name_plural = _("images")
        ordering = ["reference"]
        constraints = [models.UniqueConstraint(fields=["cluster", "reference"], name="inventory_image_once")]
        indexes = [
            models.Index(fields=["cluster", "not_before"], name="inventory_image_due", condition=models.Q(wanted=True))
        ]

    def __str__(self) -> str:
        return self.reference
