"""Decisions are written completely, on the state they used and by the current leader, or not at all."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from django.utils import timezone

from hetsched.contracts.api.decision import Reason, Verdict
from hetsched.contracts.objects.allocation import Allocation, CardGrant
from hetsched.inventory.actions import cordon
from hetsched.inventory.models import Cluster, Node
from hetsched.journal.models import OutboxEvent
from hetsched.placement.actions import Conflict, cancel, decisions, record, release, retry
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Decision, Pod, Reservation, ReservedCard
from hetsched.placement.queries.invariants import check_invariants
from hetsched.placement.queries.topics import snapshot, workload_topic
from hetsched.placement.scheduling_queue.backoff_queue import backoff
from hetsched.policies.actions import activate, save_draft
from hetsched.policies.effective import active_specs
from hetsched.storage.snapshot_read import database_now
from tests.builders import a_node, a_pod
from tests.situations import ALICE, a_cluster, acquire_lease, placed, placing, recorded, refusing, submitted

pytestmark = pytest.mark.django_db
WHOLE_CARD_0 = CardGrant(0, 1000, 40960)


def _nothing_written(cluster: Cluster) -> None:
    assert not Decision.objects.exists()
    assert not Reservation.objects.exists()
    assert set(Pod.objects.values_list("state", flat=True)) == {"pending"}
    assert Node.objects.get(cluster=cluster).pods == 0
    assert not OutboxEvent.objects.filter(topic="decisions").exists()


def test_placement_writes_decision_reservation_and_node_load() -> None:
    cluster = a_cluster()
    submitted(cluster, a_pod("p").cpu("1500m"))
    revision = recorded(cluster, placing(cluster, "n1", WHOLE_CARD_0))
    pod, decision, reservation = Pod.objects.get(), Decision.objects.get(), Reservation.objects.get()
    assert (pod.state, pod.queued, pod.attempts, pod.decision) == ("placed", False, 1, decision)
    assert pod.node is not None
    assert pod.node.name == "n1"
    assert (decision.verdict, decision.node_name, decision.score) == ("placed", "n1", 50.0)
    assert (reservation.revision, reservation.active, reservation.requests["cpu"]) == (revision, True, 1500)
    node = Node.objects.get()
    assert (node.pods, node.requested["cpu"], node.gpu_milli_used) == (1, 1500, 1000)
    assert check_invariants() == []


def test_changed_facts_reject_the_decision() -> None:
    cluster = a_cluster()
    submitted(cluster)
    seen = Cluster.objects.get().revision
    cordon(cluster, "n1", actor=ALICE, reason="repair")
    with pytest.raises(Conflict):
        record(cluster.pk, placing(cluster, "n1"), revision=seen, epoch=0, snapshot="")
    _nothing_written(cluster)


def test_new_reservations_reject_the_decision() -> None:
    cluster = a_cluster()
    submitted(cluster, a_pod("late"))
    late, seen = placing(cluster, "n1"), Cluster.objects.get().revision
    submitted(cluster, a_pod("early"))
    recorded(cluster, [result for result in placing(cluster, "n1") if result.waiting.spec.name == "early"])
    with pytest.raises(Conflict):
        record(cluster.pk, late, revision=seen, epoch=0, snapshot="")


def test_progress_or_end_of_other_pods_keeps_decisions_valid() -> None:
    cluster = a_cluster()
    first = placed(cluster, "n1", a_pod("first"))
    submitted(cluster, a_pod("late"))
    late, seen = placing(cluster, "n1"), Cluster.objects.get().revision
    release(cluster.pk, [first[0].pk], to=State.SUCCEEDED, reason="its end")
    assert record(cluster.pk, late, revision=seen, epoch=0, snapshot="") == seen + 2
    assert check_invariants() == []


def test_stale_epoch_writes_nothing() -> None:
    cluster = a_cluster()
    submitted(cluster)
    first = acquire_lease(cluster)
    Cluster.objects.update(leader_until="2020-01-01T00:00:00Z")
    second = acquire_lease(cluster)
    assert second.epoch == first.epoch + 1
    with pytest.raises(Conflict):
        recorded(cluster, placing(cluster, "n1"), epoch=first.epoch)
    _nothing_written(cluster)
    recorded(cluster, placing(cluster, "n1"), epoch=second.epoch)


def test_decision_of_an_inactive_version_is_not_written() -> None:
    cluster = a_cluster()
    submitted(cluster)
    results = refusing(cluster, Verdict.NEVER_FITS)
    spec = msgspec.structs.replace(active_specs({"hetsched"})["hetsched"], description="changed")
    activate("hetsched", save_draft(spec, actor=ALICE).version, actor=ALICE, reason="meanwhile")
    with pytest.raises(Conflict, match="policy hetsched"):
        recorded(cluster, results)
    _nothing_written(cluster)


def test_pod_that_is_no_longer_pending_rolls_back_the_batch() -> None:
    cluster = a_cluster()
    submitted(cluster, a_pod("stays"))
    workload = submitted(cluster, a_pod("leaves"))
    results = placing(cluster, "n1")
    cancel(workload, actor=ALICE, reason="changed my mind")
    with pytest.raises(Conflict, match="1 of 2 pods have changed"):
        recorded(cluster, results)
    assert not Decision.objects.exists()
    assert Pod.objects.get(name="stays").state == "pending"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (WHOLE_CARD_0, WHOLE_CARD_0),
        (CardGrant(0, 600, 0), CardGrant(0, 500, 0)),
        (CardGrant(0, 500, 0), WHOLE_CARD_0),
        (CardGrant(0, 1000, 0, uuid="GPU-1"), CardGrant(1, 1000, 0, uuid="GPU-1")),
    ],
    ids=["whole twice", "shares beyond the card", "whole over a share", "one uuid under two indexes"],
)
def test_database_rejects_a_gpu_granted_twice(first: CardGrant, second: CardGrant) -> None:
    cluster = a_cluster()
    submitted(cluster, a_pod("first"))
    recorded(cluster, placing(cluster, "n1", first))
    submitted(cluster, a_pod("second"))
    with pytest.raises(Conflict):
        recorded(cluster, placing(cluster, "n1", second))
    assert Pod.objects.get(name="second").state == "pending"
    assert ReservedCard.objects.count() == 1
    assert check_invariants() == []


def test_fitting_shares_of_a_gpu_are_granted() -> None:
    cluster = a_cluster()
    submitted(cluster, a_pod("a"), a_pod("b"))
    recorded(cluster, placing(cluster, "n1", CardGrant(0, 500, 0)))
    assert Node.objects.get().gpu_milli_used == 1000


def test_database_rejects_an_exclusive_cpu_granted_twice() -> None:
    from hetsched.contracts.objects.allocation import ZoneGrant

    cluster = a_cluster(a_node("n1").zone("zone-0", "0-3"))
    allocation = Allocation(zones=(ZoneGrant("zone-0", "0-1"),), cpu_policy="exclusive")
    for name, fits in (("a", True), ("b", False)):
        submitted(cluster, a_pod(name))
        results = [_with(result, allocation) for result in placing(cluster, "n1")]
        if fits:
            recorded(cluster, results)
        else:
            with pytest.raises(Conflict):
                recorded(cluster, results)
    assert check_invariants() == []


def _with(result: Any, allocation: Allocation) -> Any:
    import msgspec

    return msgspec.structs.replace(result, allocation=allocation)


def test_backoff_grows_and_the_first_decision_is_kept() -> None:
    cluster = a_cluster()
    submitted(cluster)
    recorded(cluster, refusing(cluster))
    pod = Pod.objects.get()
    assert (pod.state, pod.queued, pod.attempts) == ("not-now", False, 1)
    decided_at = pod.decided_at
    # 1, 2, 4, 8, then 10 seconds
    assert [backoff(n).total_seconds() for n in range(1, 7)] == [1, 2, 4, 8, 10, 10]
    Pod.objects.update(queued=True, not_before=None)
    recorded(cluster, refusing(cluster))
    pod.refresh_from_db()
    assert (pod.attempts, Decision.objects.count()) == (2, 1)
    assert pod.not_before is not None
    assert pod.decided_at == decided_at is not None


def test_decision_time_is_the_clock_of_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    # The binding worker compares it with that clock; a process whose clock is ahead must not make a binding look young.
    ahead = timezone.now() + timedelta(days=1)
    cluster = a_cluster()
    submitted(cluster)
    results = placing(cluster, "n1")
    monkeypatch.setattr("hetsched.placement.actions.change.timezone.now", lambda: ahead)
    before = database_now()
    recorded(cluster, results)
    monkeypatch.undo()
    decided_at = Pod.objects.get().decided_at
    assert decided_at is not None
    assert before - timedelta(milliseconds=1) <= decided_at <= database_now()


def test_changed_verdict_creates_a_decision() -> None:
    cluster = a_cluster()
    submitted(cluster)
    recorded(cluster, refusing(cluster))
    Pod.objects.update(queued=True, not_before=None)
    recorded(cluster, refusing(cluster, Verdict.NEVER_FITS))
    assert list(Decision.objects.order_by("id").values_list("verdict", flat=True)) == ["not-now", "never-fits"]


def refuse(cluster: Cluster, *codes: str, nodes: int = 1, message: str = "no") -> list[int]:
    """Reject the only pod again and return the IDs of all its decisions, the latest last."""
    Pod.objects.update(queued=True, not_before=None)
    reasons = tuple(Reason(code, "resource-fit", nodes, message) for code in codes)
    recorded(cluster, [msgspec.structs.replace(refusing(cluster)[0], reasons=reasons)])
    ids = list(Decision.objects.order_by("id").values_list("id", flat=True))
    assert Pod.objects.get().decision_id == ids[-1]
    return ids


def test_changed_reasons_create_a_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = a_cluster()
    submitted(cluster)
    assert len(refuse(cluster, "A")) == 1
    monkeypatch.setattr(decisions, "NEWS_AFTER", timedelta(0))
    assert len(refuse(cluster, "A", nodes=7)) == 1
    assert len(refuse(cluster, "A", "B")) == 2
    assert len(refuse(cluster, "B", "A")) == 2
    assert len(refuse(cluster, "B")) == 3
    assert len(refuse(cluster, "B", message="another claim")) == 4


def test_late_rejection_does_not_replace_a_newer_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "NEWS_AFTER", timedelta(0))
    cluster = a_cluster()
    submitted(cluster)
    refuse(cluster, "A")
    Pod.objects.update(queued=True, not_before=None)
    late = [msgspec.structs.replace(refusing(cluster)[0], reasons=(Reason("A", "resource-fit", 1, "no"),))]
    _, newer = refuse(cluster, "B")  # by another process
    with pytest.raises(Conflict, match="1 of 1 pods have changed"):
        recorded(cluster, late)
    assert Pod.objects.get().decision_id == newer


def test_unchanged_rejection_does_not_undo_the_retry_of_a_user() -> None:
    cluster = a_cluster()
    workload = submitted(cluster)
    recorded(cluster, refusing(cluster))
    Pod.objects.update(queued=True, not_before=None)
    again = refusing(cluster)
    retry(workload, actor=ALICE, reason="the node is repaired")
    with pytest.raises(Conflict, match="1 of 1 pods have changed"):
        recorded(cluster, again)
    assert snapshot(workload_topic(workload.pk)).data["pods"]["default/p"]["state"] == "pending"


def at(monkeypatch: pytest.MonkeyPatch, moment: datetime) -> None:
    monkeypatch.setattr(timezone, "now", lambda: moment)


def test_new_reasons_within_the_pause_are_recorded_later(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = a_cluster()
    submitted(cluster)
    first = timezone.now()
    at(monkeypatch, first)
    refuse(cluster, "A")
    at(monkeypatch, first + decisions.NEWS_SOON / 2)
    assert len(refuse(cluster, "B")) == 1
    pod = Pod.objects.get()
    assert pod.queued  # even without an event that it waits for
    assert pod.not_before is not None
    assert first + decisions.NEWS_SOON <= pod.not_before <= first + decisions.NEWS_SOON + backoff(2)
    assert len(refuse(cluster, "A")) == 1  # the same result as recorded before
    assert not Pod.objects.get().queued
    at(monkeypatch, first + decisions.NEWS_SOON)
    assert len(refuse(cluster, "B")) == 2


def test_frequent_reason_changes_are_recorded_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = a_cluster()
    submitted(cluster)
    first = Pod.objects.get().created_at
    for seconds, count in ((40, 1), (49, 1), (51, 2), (400, 3), (459, 3), (461, 4)):
        at(monkeypatch, first + timedelta(seconds=seconds))
        assert len(refuse(cluster, f"after {seconds}")) == count, seconds


def test_summaries_are_compared_without_stored_reasons(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.HETSCHED_KEEP_WITH_DECISION = "verdict"
    monkeypatch.setattr(decisions, "NEWS_AFTER", timedelta(0))
    cluster = a_cluster()
    submitted(cluster)
    for summary, count in (("one", 1), ("one", 1), ("two", 2)):
        Pod.objects.update(queued=True, not_before=None)
        recorded(cluster, [msgspec.structs.replace(refusing(cluster)[0], summary=summary)])
        assert Decision.objects.count() == count


def test_reasons_and_scores_are_read_back_unchanged() -> None:
    import msgspec

    cluster = a_cluster()
    submitted(cluster)
    reason = Reason("InsufficientCpu", "resource-fit", 1, "too few CPUs", ("cpu",))
    recorded(cluster, [msgspec.structs.replace(refusing(cluster)[0], reasons=(reason,))])
    assert Decision.objects.get().reasons == (reason,)


def test_queries_do_not_grow_with_the_batch(django_assert_max_num_queries: Any) -> None:
    cluster = a_cluster(*(a_node(f"n{number}").pods(500) for number in range(1, 4)))
    # SQLite allows 999 variables per statement, so inserts of 20 columns use batches of about 50 rows: 200 pods cost 4
    # + 4 such statements for decisions and reservations, and about 25 others.
    submitted(cluster, *(a_pod(f"p{number}").cpu("10m").memory("1Mi") for number in range(200)))
    results = placing(cluster, "n1")
    with django_assert_max_num_queries(50):
        recorded(cluster, results)
