"""Tampering with the audit trail in the database: each of the four ways is detected, with its position."""

from __future__ import annotations

import pytest
from django.db import connection

from hetsched.contracts.message import Message, to_column
from hetsched.journal import chain
from hetsched.journal.audit import record
from hetsched.journal.chain import chain_state, verify
from hetsched.journal.models import AuditEntry, AuditSeal

from .test_audit_seals import forged, noted, sealed

pytestmark = pytest.mark.django_db
TABLE = "journal_auditentry"


@pytest.fixture(autouse=True)
def small_seals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "MOST_SEALED", 2)


@pytest.fixture
def entries() -> list[AuditEntry]:
    made = noted(6)
    assert sealed() == 6
    return made


def broken() -> list[tuple[int, int]]:
    return [(seal.first_entry, seal.last_entry) for seal in verify() if seal.problem]


def test_changed_letter_is_detected(entries: list[AuditEntry]) -> None:
    forged(f"UPDATE {TABLE} SET reason = 'whz' WHERE id = {entries[3].pk}")
    assert broken() == [(entries[2].pk, entries[3].pk)]


def test_deleted_entry_is_detected(entries: list[AuditEntry]) -> None:
    forged(f"DELETE FROM {TABLE} WHERE id = {entries[0].pk}")
    assert broken() == [(entries[0].pk, entries[1].pk)]


def test_swapped_entries_are_detected(entries: list[AuditEntry]) -> None:
    one, other = entries[2].pk, entries[3].pk
    forged(f"UPDATE {TABLE} SET object_name = CASE id WHEN {one} THEN 'n3' ELSE 'n2' END WHERE id IN ({one}, {other})")
    assert broken() == [(one, other)]


def test_truncated_trail_is_detected(entries: list[AuditEntry]) -> None:
    # The head that a log outside the database recorded after the last seal.
    head = chain_state().head
    forged(f"DELETE FROM {TABLE} WHERE id IN ({entries[4].pk}, {entries[5].pk})")
    assert broken() == [(entries[4].pk, entries[5].pk)]
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM journal_auditseal WHERE first_entry = %s", [entries[4].pk])
    assert broken() == []
    assert not AuditSeal.objects.filter(digest=head).exists()  # `hetsched audit verify --head` says so


def test_changed_parameter_of_a_message_is_detected() -> None:
    message = Message("{text} (policy {name})", text="agreed", name="x")
    entry = record(actor="ada", action="policy.activate", obj=("policy", "x"), reason=message)
    assert sealed() == 1
    assert broken() == []
    other = to_column(Message("{text}", text=str(message)))  # the same English text
    forged(f"UPDATE {TABLE} SET reason = '{other}' WHERE id = {entry.pk}")
    assert AuditEntry.objects.get(pk=entry.pk).reason == message
    assert broken() == [(entry.pk, entry.pk)]
