"""The demo cluster: pods arrive, run and end, use stays below its limit, and all invariants hold."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models import F
from django.utils import timezone

from hetsched.adapters.traces.simulated_fleet import demo_cluster
from hetsched.inventory.models import Cluster
from hetsched.placement.actions import import_cluster
from hetsched.placement.models import Pod, Workload
from hetsched.placement.queries.invariants import check_invariants
from tests.situations import ALICE
from workers import bind, demo, schedule

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("builtins")]
TICK_SECONDS = 10


def _demo() -> Cluster:
    return import_cluster(demo_cluster(7), name="demo", kind="demo", actor=ALICE, demo_seed=7)


def _turn(cluster: Cluster) -> None:
    demo.tick()
    schedule.run(cluster.pk)
    bind.run(cluster.pk)


def _pass(seconds: float) -> None:
    """Advance the time of all rows."""
    earlier = timedelta(seconds=seconds)
    Pod.objects.update(started_at=F("started_at") - earlier, not_before=None)
    Workload.objects.update(decided_at=F("decided_at") - earlier)


def test_demo_cluster_fills_to_its_limit_and_makes_progress() -> None:
    cluster = _demo()
    shares: list[float] = []
    for _ in range(40):
        _turn(cluster)
        _pass(TICK_SECONDS)
        fresh = Cluster.objects.get()
        shares.append(fresh.requested["cpu"] / fresh.capacity["cpu"])
    assert 0.55 < sum(shares[20:]) / 20 < 0.80
    assert max(shares) < 0.90
    states = set(Pod.objects.values_list("state", flat=True))
    assert {"running", "succeeded", "cancelled", "misconfigured", "never-fits"} <= states
    assert Pod.objects.filter(state__in=["pending", "not-now"]).count() <= 2 * demo.MOST_WAITING
    assert check_invariants() == []


def test_equal_seeds_give_equal_streams() -> None:
    _demo()
    demo.tick()
    first = list(Workload.objects.order_by("created_at").values_list("manifest", flat=True))
    Workload.objects.all().delete()
    Cluster.objects.update(demo_sequence=0)
    demo.tick()
    assert list(Workload.objects.order_by("created_at").values_list("manifest", flat=True)) == first


def test_concurrent_ticks_submit_a_workload_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = _demo()
    stale = Cluster.objects.get()
    assert demo._submit(cluster) > 0
    count = Workload.objects.count()
    assert demo._submit(stale) == 0
    assert Workload.objects.count() == count


def test_workload_ends_after_its_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = _demo()
    _turn(cluster)
    workload = Workload.objects.filter(state="running").first()
    assert workload is not None
    lasts = demo.duration(workload.manifest).total_seconds()
    monkeypatch.setattr(demo, "_submit", lambda cluster: 0)
    _pass(lasts - 5)
    demo.tick()
    workload.refresh_from_db()
    assert workload.state == "running"
    _pass(6)
    demo.tick()
    workload.refresh_from_db()
    assert workload.state == "succeeded"


def test_pods_ended_an_hour_ago_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    from hetsched.placement.actions import retention

    monkeypatch.setattr(retention, "LATEST", 0)
    cluster = _demo()
    _turn(cluster)
    _pass(400)
    demo.tick()
    finished = Workload.objects.exclude(finished_at=None)
    assert finished.exists()
    finished.update(finished_at=timezone.now() - timedelta(hours=2))
    monkeypatch.setattr(demo, "_submit", lambda cluster: 0)
    demo.tick()
    assert not Workload.objects.filter(finished_at__lt=timezone.now() - timedelta(hours=1)).exists()
    assert check_invariants() == []


def test_demo_tick_ignores_other_clusters() -> None:
    from tests.situations import a_cluster

    a_cluster()
    assert demo.tick() == {"finished": 0, "submitted": 0, "given_up": 0, "forgotten": 0}
