"""Tests that copy the rows of the built-in policies have what `ensure_builtins` creates, after rows of other origin."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.utils import timezone

from hetsched.journal.models import AuditEntry, OutboxEvent, Topic
from hetsched.policies.actions import ensure_builtins
from hetsched.policies.models import Policy, PolicyRevision
from tests import builtins
from tests.builtins import builtin_policies


def created(make: Callable[[], object]) -> list[Any]:
    """Return the rows after a call, without times, and undo the call."""
    with transaction.atomic():
        make()
        rows = [
            *Policy.objects.order_by("id").values_list("name", "description", "active_version"),
            *PolicyRevision.objects.order_by("id").values_list("policy__name", "version", "spec", "state"),
            *AuditEntry.objects.order_by("id").values_list("actor", "action", "object_name"),
            *OutboxEvent.objects.order_by("id").values_list("topic", "revision"),
            *Topic.objects.order_by("name").values_list("name", "revision"),
        ]
        transaction.set_rollback(True)
    return rows


def test_times_of_copied_rows_are_new(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    created(builtin_policies)
    hour = timedelta(hours=1)
    monkeypatch.setattr(builtins, "_copied_at", [at - hour for at in builtins._copied_at])
    builtin_policies()
    first = OutboxEvent.objects.order_by("id")[0]
    assert first.created_at > timezone.now() + timedelta(minutes=50)  # an hour after the first ones of this process


def test_copied_rows_equal_created_ones(db: None) -> None:
    created(builtin_policies)  # the first call of a process runs `ensure_builtins` and copies
    User.objects.create_user("ada").groups.add(Group.objects.get(name="viewer"))
    assert OutboxEvent.objects.exists()
    assert created(builtin_policies) == created(ensure_builtins)
