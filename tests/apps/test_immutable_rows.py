"""Audit entries, decisions and policy content cannot be changed after they are written."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, models, transaction

from hetsched.journal.models import AuditEntry
from hetsched.placement.models import Decision
from hetsched.policies.models import PolicyRevision
from tests.situations import a_cluster, recorded, refusing, submitted

pytestmark = pytest.mark.django_db


def _refused(rows: models.QuerySet[models.Model], **columns: object) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        rows.update(**columns)


def test_audit_entries_cannot_be_updated() -> None:
    a_cluster()
    _refused(AuditEntry.objects.all(), reason="it was somebody else")


def test_audit_entries_cannot_be_saved_again_or_deleted_one_by_one() -> None:
    a_cluster()
    entry = AuditEntry.objects.first()
    assert entry is not None
    with pytest.raises(TypeError, match="append-only"):
        entry.save()
    with pytest.raises(TypeError, match="append-only"):
        entry.delete()


def test_decisions_cannot_be_updated() -> None:
    cluster = a_cluster()
    submitted(cluster)
    recorded(cluster, refusing(cluster))
    _refused(Decision.objects.all(), verdict="placed")


def test_policy_revision_content_is_immutable_but_not_its_state() -> None:
    a_cluster()
    revisions = PolicyRevision.objects.filter(policy__name="spread")
    spec = PolicyRevision.objects.get(policy__name="random").spec
    _refused(revisions, spec=spec)
    _refused(revisions, author="somebody else")
    assert revisions.update(state="retired") == 1
