"""The sweep recovers the work of lost messages: due pods, unbound placements, unsent events."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from hetsched.access.models import BrowserSession, LoginFailure
from hetsched.journal.models import OutboxEvent
from hetsched.placement import dispatch
from hetsched.placement.actions import begin_binding, confirm, release, retention
from hetsched.placement.lifecycle import State
from hetsched.placement.models import ForgottenDecision, IdempotencyKey, Pod, Workload
from tests.builders import a_node, a_pod
from tests.situations import a_cluster, acquire_lease, placed, recorded, refusing, submitted
from workers import bind, sweep

pytestmark = pytest.mark.django_db


@pytest.fixture
def woken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """Record wake-ups instead of running them."""
    sent: list[tuple[int, str]] = []
    monkeypatch.setattr(dispatch, "wake", lambda cluster_id, task=dispatch.SCHEDULE: sent.append((cluster_id, task)))
    return sent


def test_due_pods_without_a_leader_wake_the_scheduler(woken: list[Any]) -> None:
    cluster = a_cluster()
    submitted(cluster)
    woken.clear()
    assert sweep.run()["woken"] == 1
    assert woken == [(cluster.pk, dispatch.SCHEDULE)]


def test_led_or_idle_cluster_causes_no_wake_up(woken: list[Any]) -> None:
    led_one, idle = a_cluster(name="led"), a_cluster(name="idle")
    submitted(led_one, a_pod("a"))
    acquire_lease(led_one)
    submitted(idle, a_pod("b"))
    recorded(idle, refusing(idle))
    woken.clear()
    assert sweep.run()["woken"] == 0
    assert woken == []


def test_timed_pod_is_requeued_after_a_minute(woken: list[Any]) -> None:
    cluster = a_cluster()
    submitted(cluster)
    recorded(cluster, refusing(cluster))  # no plugin registered an event
    Pod.objects.update(not_before=None, tried_at=timezone.now() - timedelta(seconds=61))
    assert sweep.run()["woken"] == 1
    assert Pod.objects.values_list("queued", "flushed").get() == (True, False)


def test_expired_sessions_and_login_counters_are_deleted(woken: list[Any]) -> None:
    now = timezone.now()
    for name, ends in (("over", now - timedelta(seconds=1)), ("runs", now + timedelta(hours=1))):
        BrowserSession.objects.create(session_key=name, expire_date=ends, seen_at=now)
        LoginFailure.objects.create(key=name, window_ends_at=ends)
    sweep.run()
    assert [session.pk for session in BrowserSession.objects.all()] == ["runs"]
    assert [failure.pk for failure in LoginFailure.objects.all()] == ["runs"]


def test_old_idempotency_keys_are_deleted(woken: list[Any]) -> None:
    cluster = a_cluster()
    for key, hours in (("old", 49), ("young", 47)):
        submitted(cluster, a_pod(key), owner="ci", idempotency_key=key, body_hash="h")
        IdempotencyKey.objects.filter(key=key).update(created_at=timezone.now() - timedelta(hours=hours))
    sweep.run()
    assert list(IdempotencyKey.objects.values_list("key", flat=True)) == ["young"]


def test_unsent_events_are_sent(woken: list[Any]) -> None:
    a_cluster()
    OutboxEvent.objects.update(published_at=None, created_at=timezone.now() - timedelta(seconds=5))
    assert sweep.run()["relayed"] == OutboxEvent.objects.count()
    assert sweep.run()["relayed"] == 0


def test_unbound_placements_of_a_demo_cluster_are_found(woken: list[Any]) -> None:
    demo, offline = a_cluster(name="demo", kind="demo"), a_cluster(name="offline")
    placed(demo, "n1", a_pod("a"))
    placed(offline, "n1", a_pod("b"))
    woken.clear()
    sweep.run()
    assert woken == [(demo.pk, dispatch.BIND)]


def test_binding_continues_from_each_pods_state() -> None:
    demo = a_cluster(a_node("n1"), kind="demo")
    pods = placed(demo, "n1", a_pod("placed"), a_pod("binding"), a_pod("bound"))
    begin_binding(demo.pk, [pods[1].pk, pods[2].pk])
    confirm(demo.pk, [pods[2].pk])
    assert bind.run(demo.pk) == 3
    assert set(Pod.objects.values_list("state", flat=True)) == {"running"}
    assert bind.run(demo.pk) == 0


def test_offline_cluster_binds_nothing() -> None:
    offline = a_cluster()
    placed(offline, "n1", a_pod("p"))
    assert bind.run(offline.pk) == 0
    assert Pod.objects.get().state == "placed"


def test_sweep_deletes_old_pods_and_later_their_summaries(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "LATEST", 0)
    cluster = a_cluster()
    pods = placed(cluster, "n1", a_pod("p"))
    release(cluster.pk, [pods[0].pk], to=State.SUCCEEDED, reason="done")
    Workload.objects.update(finished_at=timezone.now() - timedelta(hours=settings.HETSCHED_KEEP_FINISHED_HOURS + 1))
    sweep.run()
    assert not Workload.objects.exists()
    ForgottenDecision.objects.get()
    ForgottenDecision.objects.update(
        created_at=timezone.now() - timedelta(days=settings.HETSCHED_KEEP_SUMMARIES_DAYS + 1)
    )
    sweep.run()
    assert not ForgottenDecision.objects.exists()
