"""A row that is created without its model equals the row that the model creates."""

from __future__ import annotations

import pytest
from django.db import models

from hetsched.journal.models import AuditEntry, OutboxEvent
from hetsched.placement.models import Decision, Pod, Reservation
from hetsched.storage.bulk_rows import new

PLAIN = [Pod, Decision, Reservation, OutboxEvent, AuditEntry]


@pytest.mark.parametrize("model", PLAIN, ids=lambda model: model.__name__)
def test_row_has_every_model_default(model: type[models.Model]) -> None:
    fields = [field.attname for field in model._meta.concrete_fields]
    ours, theirs = new(model), model()
    assert {name: getattr(ours, name) for name in fields} == {name: getattr(theirs, name) for name in fields}
    assert ours._state.adding


def test_given_values_precede_model_defaults() -> None:
    pod = new(Pod, cluster_id=7, name="p", queued=False)
    assert (pod.cluster_id, pod.name, pod.queued) == (7, "p", False)


def test_no_two_rows_share_a_mutable_value() -> None:
    first, second = new(AuditEntry), new(AuditEntry)
    first.details["seen"] = True
    assert second.details == {}
