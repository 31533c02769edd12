"""Models of topics, the outbox, the audit trail and stored metrics.

The revision of a topic increases by exactly 1 with each event. An event is written in the transaction of its change and
sent after the commit, so it is delivered at least once and never for a change that was rolled back. Audit entries are
append-only.
Invariants: (topic, revision) is unique and without gaps; `Topic.revision` is the highest revision of its events, or 1
for a topic that was opened for a subscriber and has no events yet.
"""

from __future__ import annotations

from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _

from hetsched.storage.message_field import MessageField


class Topic(models.Model):
    """Subject of a live subscription, with the revision of its latest event."""

    name = models.CharField(_("name"), max_length=400, primary_key=True)
    revision = models.BigIntegerField(_("revision"), default=0)

    class Meta:
        verbose_name = _("topic")
        verbose_name_plural = _("topics")

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}"


class OutboxEvent(models.Model):
    """One event of a topic, to be sent to live clients; `data` is an RFC 7396 merge patch of the topic's document."""

    topic = models.CharField(_("topic"), max_length=400)
    revision = models.BigIntegerField(_("revision"))
    data = models.JSONField(_("data"))
    created_at = models.DateTimeField(_("created"), auto_now_add=True)
    published_at = models.DateTimeField(_("published"), null=True)

    class Meta:
        verbose_name = _("outbox event")
        verbose_name_plural = _("outbox events")
        constraints = [models.UniqueConstraint(fields=["topic", "revision"], name="journal_event_once")]
        indexes = [
            models.Index(fields=["id"], name="journal_event_unsent", condition=models.Q(published_at=None)),
            models.Index(fields=["created_at"], name="journal_event_age"),
        ]

    def __str__(self) -> str:
        return f"{self.topic}@{self.revision}"


class Figure(models.Model):
    """One stored value of a metric, by labels and, for a histogram, by part; see `counters.py`."""

    name = models.CharField(max_length=100)
    labels = models.CharField(max_length=400)
    part = models.CharField(max_length=20, blank=True)
    value = models.FloatField()
    at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["name", "labels", "part"], name="journal_figure_once")]

    def __str__(self) -> str:
        return f"{self.name}{self.labels} {self.part}"


class AppendOnly(models.Model):
    """Abstract base of rows that never change; a database trigger rejects updates (`hetsched.storage.triggers`)."""

    class Meta:
        abstract = True

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            raise TypeError(f"{self._meta.verbose_name} {self.pk} is append-only and cannot be changed")
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{self._meta.verbose_name} {self.pk} is append-only and cannot be deleted")


class AuditEntry(AppendOnly):
    """Audit entry: actor, action, object and reason."""

    at = models.DateTimeField(_("time"), auto_now_add=True, db_index=True)
    actor = models.CharField(_("actor"), max_length=255)
    role = models.CharField(_("role"), max_length=100, blank=True)
    action = models.CharField(_("action"), max_length=60, db_index=True)
    object_kind = models.CharField(_("object kind"), max_length=60)
    object_name = models.CharField(_("object"), max_length=400)
    reason = MessageField(_("reason"), blank=True)
    details = models.JSONField(_("details"), default=dict)
    request_id = models.CharField(_("request"), max_length=64, blank=True, default="")

    class Meta:
        verbose_name = _("audit entry")
        verbose_name_plural = _("audit entries")
        ordering = ["-id"]
        indexes = [models.Index(fields=["object_kind", "object_name"], name="journal_audit_object")]

    def __str__(self) -> str:
        return f"{self.actor}: {self.action} {self.object_kind} {self.object_name}"


class AuditSeal(models.Model):
    """Digest over the audit entries after the previous seal up to `last_entry`; see `chain.py`."""

    first_entry = models.BigIntegerField(_("first entry"), unique=True)
    last_entry = models.BigIntegerField(_("last entry"))
    entries = models.IntegerField(_("entries"))
    digest = models.CharField(_("digest"), max_length=64)
    key = models.CharField(_("key"), max_length=16, blank=True)
    sealed_at = models.DateTimeField(_("sealed"), auto_now_add=True)
    verified_at = models.DateTimeField(_("verified"), db_index=True)
    problem = MessageField(_("problem"), blank=True)

    class Meta:
        verbose_name = _("seal of the audit trail")
        verbose_name_plural = _("seals of the audit trail")

    def __str__(self) -> str:
        return f"{self.first_entry}-{self.last_entry}: {self.digest[:12]}"
