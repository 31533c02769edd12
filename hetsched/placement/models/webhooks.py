"""Webhooks, their signing secrets, and deliveries with the result of each attempt.

A message to an external host may be lost, late or rejected. Users must see the result of each attempt and be able to
request the message again.
A delivery is one message to one URL, written in the transaction of the change that it reports. Its id and body never
change, whatever the number of attempts, and recorded attempts are never changed. A webhook reports all workloads that
it covers; a delivery without a webhook is sent to the callback URL of a submission. Secrets are stored encrypted.
Invariant: a delivery is `due` until a response confirms it (`delivered`) or hetsched gives it up (`dead`); a redelivery
makes it due again.
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from hetsched.inventory.models import Cluster
from hetsched.storage.message_field import MessageField

from ..ids import sortable_id

LONGEST_URL = 2000


def new_webhook_id() -> str:
    return sortable_id("wh")


def new_delivery_id() -> str:
    return sortable_id("d")


class Webhook(models.Model):
    """A URL and the workload states that are reported to it; an empty list in `states` or `namespaces` means all.

    The webhook reports only what its `owner` may see. `paused_because` is the reason why the server paused the webhook.
    """

    id = models.CharField(max_length=40, primary_key=True, default=new_webhook_id, editable=False)
    name = models.CharField(_("name"), max_length=100)
    url = models.URLField(_("address"), max_length=LONGEST_URL)
    host = models.CharField(_("host"), max_length=300)
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, null=True, related_name="+")
    namespaces = models.JSONField(_("namespaces"), default=list, blank=True)
    states = models.JSONField(_("states"), default=list, blank=True)
    enabled = models.BooleanField(_("enabled"), default=True)
    paused_because = MessageField(_("pause reason"), blank=True)
    given_up_in_a_row = models.PositiveIntegerField(default=0, editable=False)
    owner = models.CharField(_("owner"), max_length=200)
    created_by = models.CharField(_("made by"), max_length=255)
    created_at = models.DateTimeField(_("made"))
    version = models.PositiveIntegerField(default=1, editable=False)

    class Meta:
        verbose_name = _("webhook")
        verbose_name_plural = _("webhooks")
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(fields=["owner", "name"], name="placement_webhook_name")]

    def __str__(self) -> str:
        return self.name


class SigningSecret(models.Model):
    """The signing secret of one holder: a webhook, or an owner of callback URLs in submissions.

    `sealed_before` is the previous secret; messages are signed with both secrets until `before_until`.
    """

    holder = models.CharField(max_length=240, primary_key=True)
    sealed = models.TextField()
    sealed_before = models.TextField(blank=True)
    before_until = models.DateTimeField(null=True)
    made_at = models.DateTimeField(_("made"))

    def __str__(self) -> str:
        return self.holder


class CallbackHost(models.Model):
    """A host that receives callbacks; one process at a time calls it.

    If a call gets no response, the host is skipped until `quiet_until`.
    """

    host = models.CharField(max_length=300, primary_key=True)
    held_until = models.DateTimeField(null=True)
    quiet_until = models.DateTimeField(null=True)
    failures = models.PositiveIntegerField(default=0)

    def __str__(self) -> str:
        return self.host


class Delivery(models.Model):
    """One message to one URL. `attempts` is the number of attempts since `began_at`: creation or the last redelivery.

    `status`, `code` and `message` describe the latest attempt. A delivery is kept when its workload is deleted.
    """

    DUE, DELIVERED, DEAD = "due", "delivered", "dead"
    STATES = ((DUE, _("due")), (DELIVERED, _("delivered")), (DEAD, _("given up")))

    id = models.CharField(max_length=40, primary_key=True, default=new_delivery_id, editable=False)
    webhook = models.ForeignKey(Webhook, on_delete=models.CASCADE, null=True, related_name="deliveries")
    workload = models.CharField(_("workload"), max_length=40, blank=True, db_index=True)
    namespace = models.CharField(_("namespace"), max_length=63, blank=True)
    owner = models.CharField(_("owner"), max_length=200, blank=True)
    event = models.CharField(_("event"), max_length=60)
    url = models.URLField(_("address"), max_length=LONGEST_URL)
    host = models.CharField(_("host"), max_length=300)
    body = models.TextField(_("body"))
    state = models.CharField(_("state"), max_length=10, choices=STATES, default=DUE)
    attempts = models.PositiveIntegerField(_("attempts"), default=0)
    not_before = models.DateTimeField(_("next attempt"))
    began_at = models.DateTimeField()
    created_at = models.DateTimeField(_("made"))
    ended_at = models.DateTimeField(_("ended"), null=True)
    status = models.PositiveIntegerField(_("response status"), null=True)
    code = models.CharField(max_length=63, blank=True)
    message = MessageField(_("message"), blank=True)

    class Meta:
        verbose_name = _("delivery")
        verbose_name_plural = _("deliveries")
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(state__in=["dead", "delivered", "due"]), name="placement_delivery_state"
            )
        ]
        indexes = [
            models.Index(fields=["host", "not_before"], name="placement_delivery_due", condition=models.Q(state="due")),
            models.Index(fields=["ended_at"], name="placement_delivery_ended"),
        ]

    def __str__(self) -> str:
        return self.id


class DeliveryAttempt(models.Model):
    """The result of one attempt; `status` is null if there was no response, and `code` is the reason."""

    delivery = models.ForeignKey(Delivery, on_delete=models.CASCADE, related_name="log")
    at = models.DateTimeField(_("at"))
    took_millis = models.PositiveIntegerField(_("duration in ms"))
    status = models.PositiveIntegerField(_("response status"), null=True)
    code = models.CharField(max_length=63, blank=True)
    message = MessageField(_("message"), blank=True)

    class Meta:
        verbose_name = _("attempt")
        verbose_name_plural = _("attempts")
        ordering = ["id"]

    def __str__(self) -> str:
        return f"{self.delivery_id} at {self.at}"
