"""Replays of recorded decisions under a policy version: an unchanged one moves no pod, a changed one equals `simulate`.

`HETSCHED_TEST_DECISIONS` sets the number of decisions; a few hundred suffice, 10,000 take minutes.
"""

from __future__ import annotations

import json
import os
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.utils import timezone

from hetsched.adapters.objects.export.cluster import policy_object, write_cluster
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.contracts.objects.workload import PodSpec
from hetsched.inventory.models import Cluster
from hetsched.journal.models import AuditEntry, OutboxEvent
from hetsched.placement import actions, dispatch
from hetsched.placement.actions import export_cluster
from hetsched.placement.actions.previews import (
    LOST_AFTER,
    WAITS_AT_MOST,
    WOKEN_AFTER,
    cancel_preview,
    claim_preview,
    fail_lost_previews,
    record_progress,
    request_preview,
    wake_waiting_preview,
)
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Decision, Pod, Reservation
from hetsched.placement.queries.replay import replay
from hetsched.policies.actions import activate, save_draft
from hetsched.policies.effective import active_specs
from hetsched.policies.models import PolicyRevision, Preview
from hetsched.policies.plan_contracts import PreviewParameters
from tests.builders import PodBuilder, a_node, a_pod
from tests.situations import ALICE, a_cluster, submitted
from tests.unit.cli.calling import document, run
from tests.walk import Walk
from workers import replay as worker
from workers import schedule

pytestmark = pytest.mark.django_db
DECISIONS = int(os.environ.get("HETSCHED_TEST_DECISIONS", "300"))


def fleet(nodes: int = 12) -> Cluster:
    """Import different nodes: of two sizes, every third one with two GPUs."""
    return a_cluster(*(a_node(f"n{i:03}").cpu(4 + 4 * (i % 2)).gpus(2 if i % 3 == 0 else 0) for i in range(nodes)))


def a_request(draw: random.Random, number: int) -> PodBuilder:
    pod = a_pod(f"p{number:05}").cpu(draw.choice(("250m", "500m", "1", "2"))).memory(draw.choice(("256Mi", "1Gi")))
    return pod.gpu(1, milli=draw.choice((300, 500, 1000))) if draw.random() < 0.3 else pod


def history(cluster: Cluster, pods: int, *, departures: bool, seed: int = 5) -> list[PodSpec]:
    """Submit and decide pods, a few at a time; with departures, about as many placed pods end."""
    draw, came = random.Random(seed), 0
    specs: list[PodSpec] = []
    while came < pods:
        some = [a_request(draw, came + i).build() for i in range(min(draw.randint(1, 40), pods - came))]
        came += len(some)
        specs += some
        submitted(cluster, *some)
        schedule.run(cluster.pk)
        holding = list(Pod.objects.filter(state=State.PLACED).order_by("id").values_list("pk", flat=True))
        if departures and len(holding) > 30:
            actions.release(
                cluster.pk,
                draw.sample(holding, min(len(some), len(holding) - 20)),
                to=State.SUCCEEDED,
                reason="its end",
            )
    return specs


def changed(name: str = "hetsched") -> PolicySpec:
    """Return the active version of a policy, changed to bin packing."""
    spec = active_specs({name})[name]
    without = ("least-allocated", "balanced-allocation", "tightest-fit")
    rest = tuple(use for use in spec.plugins if use.name not in without)
    return msgspec.structs.replace(spec, plugins=(*rest, PluginUse("tightest-fit", 50.0)))


def draft(spec: PolicySpec) -> PolicyRevision:
    return save_draft(spec, actor=ALICE, reason="denser")


def written() -> tuple[int, ...]:
    return tuple(model.objects.count() for model in (Pod, Decision, Reservation, AuditEntry, OutboxEvent))


def test_unchanged_policy_repeats_every_placement() -> None:
    cluster = fleet(max(12, DECISIONS // 25))
    history(cluster, DECISIONS, departures=True)
    same = draft(active_specs({"hetsched"})["hetsched"]).spec
    before = written()
    result, changes = replay(Cluster.objects.get(), same, PreviewParameters(last=DECISIONS))
    assert (result.decisions, result.moved, result.infeasible, result.feasible, changes) == (DECISIONS, 0, 0, 0, ())
    assert result.same + result.pending_both == DECISIONS
    assert result.departures > DECISIONS // 4
    assert (result.fidelity.equal, result.fidelity.reasons) == (DECISIONS, ())
    assert result.baseline.metrics == result.draft.metrics
    assert written() == before


def test_changed_policy_without_departures_equals_simulate(tmp_path: Path) -> None:
    cluster = fleet(30)
    old = [a_pod(f"old{number}").cpu("1").gpu(1, milli=200) for number in range(4)]
    submitted(cluster, *old)
    schedule.run(cluster.pk)
    start = write_cluster(export_cluster(Cluster.objects.get()))
    pods = history(cluster, min(DECISIONS, 120), departures=False)
    spec = draft(changed()).spec
    result, changes = replay(Cluster.objects.get(), spec, PreviewParameters(last=len(pods)))

    files = {"cluster": start, "pods": write_cluster(ClusterContent(pending=tuple(pods)))}
    files["policy"] = msgspec.json.encode(policy_object(spec))
    for name, data in files.items():
        (tmp_path / f"{name}.json").write_bytes(data)
    arguments = [word for name in ("cluster", "policy") for word in (f"--{name}", str(tmp_path / f"{name}.json"))]
    output = run("simulate", *arguments, "--workload", str(tmp_path / "pods.json"), "-o", "json")
    (simulated,) = document(output)["results"]

    assert json.loads(msgspec.json.encode(result.draft.metrics)) == simulated["metrics"]
    assert (result.draft.placed, result.draft.pending) == (simulated["placed"], simulated["pending"])
    before = {f"{row.namespace}/{row.pod_name}": row.node_name or None for row in Decision.objects.order_by("id")}
    after = {change.pod: change.to_node for change in changes}
    assert {placement["pod"]: placement["node"] for placement in simulated["placements"]} == {
        pod.key: after.get(pod.key, before[pod.key]) for pod in pods
    }
    assert result.moved > 10
    # Bin packing prefers its node: the margin is never negative.
    assert all(change.margin is None or change.margin >= 0 for change in changes)


def test_any_history_is_repeated_by_an_unchanged_policy() -> None:
    walk = Walk(4)
    for _ in range(40):
        walk.step()
    cluster = Cluster.objects.get()
    spec = active_specs({"hetsched"})["hetsched"]
    result, changes = replay(cluster, spec, PreviewParameters(last=1000))
    assert changes == ()
    assert result.fidelity.compared == result.decisions > 10
    different = sum(count.pods for count in result.fidelity.reasons)
    assert result.fidelity.equal + different == result.fidelity.compared


def test_replay_applies_recorded_arrivals_and_departures() -> None:
    cluster = a_cluster(a_node("n1").cpu(4), a_node("n2").cpu(4))
    submitted(cluster, a_pod("first").cpu("3"))
    schedule.run(cluster.pk)  # on n1: equal scores select the lowest name
    actions.release(cluster.pk, [Pod.objects.get().pk], to=State.SUCCEEDED, reason="its end")
    submitted(cluster, a_pod("second").cpu("3"))
    schedule.run(cluster.pk)
    result, _ = replay(Cluster.objects.get(), active_specs({"hetsched"})["hetsched"], PreviewParameters())
    assert (result.decisions, result.departures, result.fidelity.equal) == (2, 1, 2)


def test_added_filter_rejects_and_removed_filter_admits_pods() -> None:
    cluster = a_cluster(a_node("n1"), a_node("n2"))
    strict = active_specs({"hetsched"})["hetsched"]
    without = tuple(use for use in strict.plugins if use.name != "node-affinity")
    loose = draft(msgspec.structs.replace(strict, plugins=without))
    submitted(cluster, a_pod("nowhere").on_nodes_with(zone="moon"))
    schedule.run(cluster.pk)
    found, (change,) = replay(Cluster.objects.get(), loose.spec, PreviewParameters())
    assert (found.feasible, change.pod, change.change, change.from_node) == (1, "default/nowhere", "feasible", None)

    activate("hetsched", loose.version, actor=ALICE, reason="any node will do")
    found, (change,) = replay(Cluster.objects.get(), draft(strict).spec, PreviewParameters())
    assert (found.infeasible, change.change, change.to_node) == (1, "infeasible", None)
    assert change.reason is not None
    assert "0 of 2 nodes fit" in change.reason


def test_other_policies_are_replaced_only_on_request() -> None:
    cluster = fleet(6)
    submitted(cluster, *(a_pod(f"a{i}") for i in range(6)))
    submitted(cluster, *(a_pod(f"b{i}").policy("spread") for i in range(6)))
    schedule.run(cluster.pk)
    spec = draft(changed()).spec
    own, changes = replay(Cluster.objects.get(), spec, PreviewParameters())
    assert {change.policy for change in changes if change.change == "moved"} <= {"hetsched", "spread"}
    all_policies, all_changes = replay(Cluster.objects.get(), spec, PreviewParameters(scope="all"))
    assert len({change.to_node for change in all_changes}) < len({change.from_node for change in all_changes})
    assert all_policies.draft.metrics.balance <= own.draft.metrics.balance


def test_decision_of_another_version_is_marked() -> None:
    cluster = fleet()
    history(cluster, 40, departures=False)
    packing = draft(changed())
    activate("hetsched", packing.version, actor=ALICE, reason="denser")
    same = draft(changed()).spec
    result, changes = replay(Cluster.objects.get(), same, PreviewParameters())
    assert changes == ()  # compared with the active version
    assert {count.code for count in result.fidelity.reasons} == {"otherVersion"}
    recorded, changes = replay(Cluster.objects.get(), same, PreviewParameters(baseline="recorded"))
    assert (recorded.fidelity.equal, recorded.baseline.version) == (40, 1)
    assert changes


# -- the row and the task ----------------------------------------------------------------------------------------------


def asked(revision: PolicyRevision, owner: str = "user:1", **more: Any) -> Preview:
    return request_preview(
        revision, Cluster.objects.get(), PreviewParameters(last=50), actor=ALICE, owner=owner, **more
    )


@pytest.fixture
def revision() -> PolicyRevision:
    history(fleet(), 20, departures=False)
    return draft(changed())


def test_worker_runs_the_preview_once_and_writes_the_result(revision: PolicyRevision) -> None:
    row = asked(revision)
    assert row.state == Preview.WAITING
    assert worker.run(row.pk) is True
    assert worker.run(row.pk) is False  # it runs once
    row.refresh_from_db()
    assert (row.state, row.progress, row.problem) == (Preview.DONE, 1.0, None)
    assert row.result is not None
    assert row.result.decisions == 20
    assert len(row.changes) == row.result.moved + row.result.infeasible + row.result.feasible


def test_user_has_one_open_preview(revision: PolicyRevision) -> None:
    first = asked(revision)
    with pytest.raises(Exception, match="PreviewRunning"):
        asked(revision)
    asked(revision, owner="user:2")
    cancel_preview(first)
    asked(revision)
    first.refresh_from_db()
    assert first.state == Preview.CANCELLED


def test_cancelled_preview_stops(revision: PolicyRevision, monkeypatch: pytest.MonkeyPatch) -> None:
    row = asked(revision)
    monkeypatch.setattr(worker, "_PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr(worker, "record_progress", lambda pk, share: (cancel_preview(row), record_progress(pk, share)))
    assert worker.run(row.pk) is False
    row.refresh_from_db()
    assert (row.state, row.result) == (Preview.CANCELLED, None)


def test_preview_of_a_killed_worker_fails_and_frees_its_slot(revision: PolicyRevision) -> None:
    row = asked(revision)
    taken = claim_preview()
    assert taken is not None
    assert taken.seen_at is not None
    assert fail_lost_previews(taken.seen_at + LOST_AFTER * 2) == 1
    row.refresh_from_db()
    assert row.problem is not None
    assert (row.state, row.problem.code) == (Preview.FAILED, "PreviewLost")
    asked(revision)


def test_owners_are_ordered_by_used_worker_time(revision: PolicyRevision) -> None:
    """An owner with many previews waits for owners with less worker time, even if these asked later."""
    first = asked(revision)
    taken = claim_preview()
    assert taken is not None
    assert taken.pk == first.pk
    now = timezone.now()
    Preview.objects.filter(pk=first.pk).update(
        state=Preview.DONE, started_at=now - timedelta(minutes=5), ended_at=now - timedelta(minutes=1)
    )
    again = asked(revision)
    later, latest = asked(revision, owner="user:2"), asked(revision, owner="user:3")
    order = [one.pk for one in iter(claim_preview, None) if one is not None]
    assert order == [later.pk, latest.pk, again.pk]


def test_queued_preview_does_not_time_out(revision: PolicyRevision) -> None:
    asked(revision)
    running = claim_preview()
    waiting = asked(revision, owner="user:2")
    assert running is not None
    late = timezone.now() + WAITS_AT_MOST * 2
    Preview.objects.filter(pk=running.pk).update(seen_at=late)
    assert fail_lost_previews(late) == 0
    Preview.objects.filter(pk=running.pk).update(seen_at=timezone.now(), state=Preview.CANCELLED)
    assert fail_lost_previews(late) == 1
    waiting.refresh_from_db()
    assert waiting.problem is not None
    assert waiting.problem.code == "PreviewNotStarted"


def test_lost_wake_up_of_a_preview_is_sent_again(revision: PolicyRevision, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int | str, str]] = []
    monkeypatch.setattr(dispatch, "wake", lambda row_id, task: sent.append((row_id, task)))
    row = asked(revision)
    sent.clear()
    wake_waiting_preview(timezone.now())
    assert sent == []
    wake_waiting_preview(timezone.now() + WOKEN_AFTER * 2)
    assert sent == [(row.pk, dispatch.REPLAY)]


def test_preview_without_decisions_is_rejected(revision: PolicyRevision) -> None:
    empty = a_cluster(a_node("m1"), name="empty")
    row = request_preview(revision, empty, PreviewParameters(), actor=ALICE, owner="user:1")
    assert worker.run(row.pk) is False
    row.refresh_from_db()
    assert row.problem is not None
    assert row.problem.code == "NothingToReplay"
