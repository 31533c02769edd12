"""Only the transitions of the table are possible between states, in Python and in the database itself."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, connection, transaction

from hetsched.placement.lifecycle import FINISHED, HOLDING, LIVE, TRANSITIONS, State, workload_state
from hetsched.placement.models import Pod
from tests.situations import a_cluster, submitted


def test_every_state_can_be_reached_and_every_unfinished_one_left() -> None:
    reached = {State.PENDING}
    while True:
        more = {target for source in reached for target in TRANSITIONS[source]} | reached
        if more == reached:
            break
        reached = more
    assert reached == set(State)
    assert all(TRANSITIONS[state] for state in set(State) - FINISHED)


def test_states_with_reservations_are_unfinished() -> None:
    assert HOLDING <= LIVE
    assert not HOLDING & FINISHED


@pytest.mark.django_db
def test_database_refuses_every_change_that_is_not_in_the_table() -> None:
    pod = submitted(a_cluster()).pods.get()
    table = Pod._meta.db_table
    for source in State:
        for target in State:
            with connection.cursor() as cursor:
                cursor.execute(f"DROP TRIGGER placement_pod_lifecycle{' ON ' + table if _postgres() else ''}")
                cursor.execute(f"UPDATE {table} SET state = %s WHERE id = %s", [source.value, pod.pk])
            _guard_again()
            allowed = source is target or target in TRANSITIONS[source]
            try:
                with transaction.atomic():
                    Pod.objects.filter(pk=pod.pk).update(state=target.value)
                changed = True
            except IntegrityError:
                changed = False
            assert changed == allowed, f"{source} -> {target}"


def _postgres() -> bool:
    return connection.vendor == "postgresql"


def _guard_again() -> None:
    from django.apps import apps

    from hetsched.storage.triggers import install_of

    install_of(apps.get_app_config("placement"))


def test_workload_is_pending_while_a_pod_is_pending() -> None:
    assert workload_state(["placed", "never-fits", "pending"]) is State.PENDING


def test_decided_workload_has_the_worst_verdict() -> None:
    assert workload_state(["placed", "not-now"]) is State.NOT_NOW
    assert workload_state(["not-now", "never-fits"]) is State.NEVER_FITS
    assert workload_state(["never-fits", "misconfigured", "running"]) is State.MISCONFIGURED


def test_placed_workload_has_the_state_of_its_slowest_pod() -> None:
    assert workload_state(["running", "bound"]) is State.BOUND
    assert workload_state(["running", "failed"]) is State.RUNNING


def test_finished_workload_failed_if_a_pod_failed() -> None:
    assert workload_state(["succeeded", "succeeded"]) is State.SUCCEEDED
    assert workload_state(["succeeded", "failed", "cancelled"]) is State.FAILED
    assert workload_state(["succeeded", "cancelled"]) is State.CANCELLED
