"""Audit entries are sealed in batches of some hundred; later changes are detected."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, utils
from structlog.contextvars import bound_contextvars

from hetsched.journal import chain
from hetsched.journal.audit import SYSTEM, record, record_many
from hetsched.journal.chain import chain_state, seal_new, verify, verify_oldest
from hetsched.journal.models import AuditEntry, AuditSeal
from hetsched.storage.triggers import install_of

pytestmark = pytest.mark.django_db


def noted(count: int) -> list[AuditEntry]:
    return [record(actor="ada", action="node.cordon", obj=("node", f"n{i}"), reason="why") for i in range(count)]


def sealed() -> int:
    return seal_new(settled=timedelta(0))


def forged(statement: str) -> None:
    """Make a change that the trigger would reject, as the database's owner can."""
    with connection.cursor() as cursor:
        cursor.execute("DROP TRIGGER journal_auditentry_append_only" + (
            "" if connection.vendor == "sqlite" else " ON journal_auditentry"))  # fmt: skip
        cursor.execute(statement)
    install_of(AuditEntry._meta.app_config)


def problems() -> list[str]:
    return [seal.problem for seal in verify()]


def test_unchanged_sealed_entries_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "MOST_SEALED", 2)
    noted(5)
    assert (sealed(), sealed(), AuditSeal.objects.count()) == (5, 0, 3)  # 2 + 2 + 1
    assert problems() == ["", "", ""]
    state = chain_state()
    assert (state.sealed, state.unsealed, state.broken) == (5, 0, [])
    assert state.head == AuditSeal.objects.order_by("id").last().digest  # type: ignore[union-attr]


def test_entries_next_to_uncommitted_ones_are_not_sealed() -> None:
    noted(1)
    assert (seal_new(), chain_state().unsealed) == (0, 1)


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE journal_auditentry SET reason = 'another' WHERE id = {id}", "was changed after sealing"),
        ("UPDATE journal_auditentry SET actor = 'bob' WHERE id = {id}", "was changed after sealing"),
        ("DELETE FROM journal_auditentry WHERE id = {id}", "3 entries were sealed, but 2 entries exist"),
    ],
)
def test_change_is_detected(statement: str, problem: str) -> None:
    entries = noted(3)
    sealed()
    forged(statement.format(id=entries[1].pk))
    assert problem in problems()[0]
    (broken,) = chain_state().broken
    assert (broken.first, broken.last) == (entries[0].pk, entries[2].pk)


def test_replaced_seal_breaks_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "MOST_SEALED", 1)
    noted(2)
    sealed()
    first = AuditSeal.objects.order_by("id")[0]
    with connection.cursor() as cursor:
        cursor.execute("DROP TRIGGER journal_auditseal_fixed" + (
            "" if connection.vendor == "sqlite" else " ON journal_auditseal"))  # fmt: skip
    AuditSeal.objects.filter(pk=first.pk).update(digest="0" * 64)
    install_of(AuditEntry._meta.app_config)
    assert problems() == ["an entry or the previous seal was changed after sealing"] * 2


def test_content_of_a_seal_is_stable() -> None:
    noted(1)
    sealed()
    with pytest.raises(utils.DatabaseError, match="an audit seal cannot be changed"):
        AuditSeal.objects.update(digest="0" * 64)


def test_each_check_verifies_the_oldest_seals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "MOST_SEALED", 1)
    entries = noted(3)
    sealed()
    forged(f"UPDATE journal_auditentry SET reason = 'x' WHERE id = {entries[2].pk}")
    assert [verify_oldest(1) for _ in range(4)] == [0, 0, 1, 0]


def test_changed_secret_key_is_distinguished_from_a_forgery(settings: Any) -> None:
    settings.SECRET_KEY_GIVEN = True
    noted(1)
    sealed()
    settings.SECRET_KEY = "another key " * 4
    assert problems() == ["sealed with another SECRET_KEY; the current SECRET_KEY cannot verify the seal"]


def test_entry_has_its_request_id() -> None:
    with bound_contextvars(request_id="r-1"):
        record(actor="ada", action="x", obj=("node", "n1"))
        record_many(SYSTEM, "y", [(("node", "n1"), "", {}), (("node", "n2"), "", {})])
    record(actor="ada", action="z", obj=("node", "n1"))
    assert list(AuditEntry.objects.order_by("id").values_list("request_id", flat=True)) == ["r-1", "r-1", "r-1", ""]
