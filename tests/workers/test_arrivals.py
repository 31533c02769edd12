"""Arriving pods of a live cluster are placed and committed before they have rows of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from kubernetes import client

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.pods.binding import BindingOutcome, BindingRequest, BindingResult
from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.objects.observed import Changes, ObservedPod
from hetsched.contracts.objects.submitted import WORKLOAD_LABEL
from hetsched.inventory.models import Cluster, Connection, Node
from hetsched.inventory.node_loads import advance
from hetsched.inventory.tiles import NO_NODE
from hetsched.journal.models import AuditEntry, OutboxEvent
from hetsched.placement import dispatch
from hetsched.placement.actions import Conflict, apply_changes, write_placement_effects
from hetsched.placement.cluster_snapshot import load_state
from hetsched.placement.models import Decision, Pod, Reservation, Workload
from hetsched.placement.queries.invariants import check_invariants
from hetsched.placement.scheduler_cache import cache_of
from hetsched.placement.scheduling_result import Result
from hetsched.scheduling import arrival_order, arrivals, binding_cycle, bindings_in_flight
from hetsched.scheduling.arrival_buffer import ArrivalBuffer
from hetsched.scheduling.arrivals import ArrivalScheduler, PlacedBatch
from hetsched.scheduling.bindings_in_flight import BindingsInFlight
from hetsched.scheduling.informer_host import MAX_BINDINGS, MIN_ARRIVALS, MOST_LAG, InformerHost
from hetsched.scheduling.leases import Lease, leading
from hetsched.scheduling.scheduling_loop import SchedulingLoop
from hetsched.storage.write_lock import write_transaction
from tests.builders import PodBuilder, a_node, a_pod
from tests.listener import Listener
from tests.situations import BindingHost, a_live_cluster, acquire_lease, arrived
from workers import sweep

pytestmark = pytest.mark.django_db
MOST_STATEMENTS = 8
Commits = Callable[..., AbstractContextManager[Any]]  # runs on-commit callbacks; tests never commit


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Return a live cluster with one node of 8 CPUs, whose state is in the scheduler cache."""
    monkeypatch.setattr(dispatch, "wake", lambda row_id, task=dispatch.SCHEDULE: None)
    made = a_live_cluster()
    apply_changes(made.pk, Changes(nodes=[a_node("n1").build()]), epoch=1)
    with cache_of(made.pk).locked_snapshot():
        pass
    return made


@pytest.fixture
def lease(cluster: Cluster) -> Lease:
    return acquire_lease(cluster)


def arriving(pod: PodBuilder, uid: str = "") -> ObservedPod:
    spec = pod.build()
    spec = pod.having(uid=uid or f"uid-{spec.name}").build()
    return ObservedPod(spec.namespace, spec.name, spec.uid, scheduler_name="hetsched", spec=spec)


def waiting(*pods: PodBuilder, uid: str = "", buffer: ArrivalBuffer | None = None) -> ArrivalBuffer:
    return arrived((arriving(pod, uid) for pod in pods), buffer)


def try_to_place(lease: Lease, *pods: PodBuilder, follower_epoch: int = 1, most: int = 200) -> PlacedBatch:
    scheduler = ArrivalScheduler(cache_of(lease.cluster_id), "live")
    return scheduler.place(waiting(*pods), lease, follower_epoch, most=most)


def place(lease: Lease, *pods: PodBuilder, follower_epoch: int = 1) -> list[Result]:
    return try_to_place(lease, *pods, follower_epoch=follower_epoch).results


def assert_state_agrees(cluster: Cluster) -> None:
    """Check that the cached state equals a reloaded one, and that the rows contradict no invariant."""
    with cache_of(cluster.pk).locked_snapshot() as snapshot:
        assert snapshot.state.digest() == load_state(cluster.pk).state.digest()
    assert check_invariants(Cluster.objects.get(pk=cluster.pk)) == []


def test_pod_that_fits_is_committed_with_its_reservation(cluster: Cluster, lease: Lease) -> None:
    (result,) = place(lease, a_pod("p").cpu(2))
    pod = Pod.objects.get()
    assert (pod.state, pod.queued, pod.node.name if pod.node else "") == ("binding", False, "n1")
    assert result.waiting.pod_id == pod.pk
    assert Reservation.objects.get(pod=pod, active=True).requests["cpu"] == 2000
    assert (Decision.objects.get().pod_id, Decision.objects.get().workload_id) == (pod.pk, Workload.objects.get().pk)
    assert_state_agrees(cluster)


def test_known_state_within_the_lag_is_not_read_again(cluster: Cluster, lease: Lease) -> None:
    scheduler = ArrivalScheduler(cache_of(cluster.pk), "live")
    assert scheduler.place(waiting(a_pod("first")), lease, 1, most=200).results
    with CaptureQueriesContext(connection) as captured:
        assert scheduler.place(waiting(a_pod("p")), lease, 1, most=200, lag=60.0).results
    texts = [query["sql"] for query in captured]
    (policies,) = [text for text in texts if text.startswith("SELECT")]  # which the commit checks
    assert "policies_policy" in policies
    assert_state_agrees(cluster)


def test_placement_on_a_lagging_state_is_rejected(cluster: Cluster, lease: Lease) -> None:
    scheduler = ArrivalScheduler(cache_of(cluster.pk), "live")
    assert scheduler.place(waiting(a_pod("first").cpu(2)), lease, 1, most=200).results
    with write_transaction():
        advance(cluster.pk)  # by another process
    with pytest.raises(Conflict):
        scheduler.place(waiting(a_pod("p").cpu(2)), lease, 1, most=200, lag=60.0)
    assert scheduler.place(waiting(a_pod("p").cpu(2)), lease, 1, most=200).results
    assert_state_agrees(cluster)


def test_state_is_current_for_a_second_after_a_conflict(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    lags: list[float] = []

    def place(self: ArrivalScheduler, *arguments: Any, lag: float, **named: Any) -> PlacedBatch:
        lags.append(lag)
        if len(lags) == 2:
            raise Conflict("another process has committed")
        return PlacedBatch()

    monkeypatch.setattr(ArrivalScheduler, "place", place)
    nothing: Any = None
    host = InformerHost(cluster, nothing)
    try:
        host._due = False
        for _ in range(3):
            host.place_arrivals(waiting(a_pod("p")), 1)
        host._exact_until = 0.0
        host.mark_due()  # pods of the queue are due, which the known state may not show
        host.place_arrivals(waiting(a_pod("p")), 1)
    finally:
        host.close()
    assert lags == [MOST_LAG, MOST_LAG, 0.0, 0.0]


def test_pod_alone_needs_one_transaction_of_few_statements(cluster: Cluster, lease: Lease) -> None:
    place(lease, a_pod("first"))  # compiles the statements, and reads the policy
    with CaptureQueriesContext(
        connection,
    ) as captured:
        assert place(lease, a_pod("p"))
    texts = [query["sql"] for query in captured]
    first = next(place for place, text in enumerate(texts) if text.startswith("UPDATE"))
    written = [text for text in texts[first:] if not text.startswith(("SAVEPOINT", "RELEASE"))]
    assert len(written) <= MOST_STATEMENTS, "\n".join(written)


def test_pods_share_a_transaction(cluster: Cluster, lease: Lease) -> None:
    # Three pods of 3 CPUs on 8: two fit, the third joins the queue.
    found = place(lease, a_pod("a").cpu(3), a_pod("b").cpu(3), a_pod("c").cpu(3))
    assert [result.waiting.spec.name for result in found] == ["a", "b"]
    assert set(Reservation.objects.values_list("revision", flat=True)) == {Cluster.objects.get().revision}
    assert_state_agrees(cluster)


def test_pods_that_do_not_fit_use_up_the_time_of_the_batch(
    cluster: Cluster, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "LONGEST_SECONDS", -1.0)
    # The first pod is always tried. After a slow batch all other pods join the queue, which shares the time.
    batch = try_to_place(lease, a_pod("large").cpu(9), a_pod("small").cpu(1), a_pod("later"), most=2)
    assert (batch.results, batch.others_wait) == ([], False)
    assert [result.waiting.spec.name for result in place(lease, a_pod("small").cpu(1))] == ["small"]


def test_late_pods_of_a_fast_batch_remain_untried(
    cluster: Cluster, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "LONGEST_SECONDS", -1.0)
    monkeypatch.setattr(arrivals, "FEWEST_PODS", 1)  # one decided pod in the time of the batch is fast enough
    batch = try_to_place(lease, a_pod("a"), a_pod("b"), a_pod("c"), most=2)
    assert [result.waiting.spec.name for result in batch.results] == ["a"]
    assert batch.tried == {"default/a"}
    assert batch.others_wait


@pytest.mark.parametrize(("limit", "value"), [("FIRST_SECONDS", -1.0), ("FIRST_PODS", 1)])
def test_first_batch_is_short_and_the_others_wait(
    cluster: Cluster, lease: Lease, monkeypatch: pytest.MonkeyPatch, limit: str, value: float
) -> None:
    """Regression: the first 200 pods with spread constraints were decided for 0.3 s before one of them was bound."""
    monkeypatch.setattr(arrivals, limit, value)
    batches = Batches(cluster, lease)
    batches.arrive(*(a_pod(name) for name in "abcd"))
    assert batches.place(is_first=True) == ["a"]
    assert batches.place() == ["b", "c"]


def test_pods_beyond_the_limit_of_a_batch_remain_untried(cluster: Cluster, lease: Lease) -> None:
    batch = try_to_place(lease, a_pod("a"), a_pod("b"), a_pod("urgent").having(priority=5), most=2)
    assert [result.waiting.spec.name for result in batch.results] == ["urgent", "a"]
    assert batch.tried == {"default/urgent", "default/a"}
    assert batch.others_wait


class Batches:
    """Batches of two pods with 1 milli-CPU from one buffer."""

    def __init__(self, cluster: Cluster, lease: Lease) -> None:
        self.buffer = ArrivalBuffer()
        self.joined: list[str] = []
        self._scheduler = ArrivalScheduler(cache_of(cluster.pk), "live")
        self._lease = lease

    def arrive(self, *pods: PodBuilder) -> None:
        waiting(*(pod.cpu("1m") for pod in pods), buffer=self.buffer)

    def place(self, **how: Any) -> list[str]:
        """Place a batch; return the names of its pods."""
        batch = self._scheduler.place(self.buffer, self._lease, 1, most=2, **how)
        placed = {result.waiting.spec.key for result in batch.results}
        joining = self.buffer.settle(placed=placed, tried=batch.tried, others_wait=batch.others_wait)
        self.joined += [pod.name for pod in joining]
        return [result.waiting.spec.name for result in batch.results]


@pytest.fixture
def batches(cluster: Cluster, lease: Lease, monkeypatch: pytest.MonkeyPatch) -> Batches:
    monkeypatch.setattr(arrival_order, "LONGEST_SECONDS", 1e6)
    monkeypatch.setattr(arrival_order, "ORDER_USES", 1e9)
    return Batches(cluster, lease)


def test_order_of_waiting_pods_is_used_for_several_batches(cluster: Cluster, batches: Batches) -> None:
    """Regression: each batch of 25 pods sorted all 4,000 pods of a backlog."""
    batches.arrive(*(a_pod(name) for name in "abcdef"))
    assert batches.place() == ["a", "b"]
    batches.arrive(a_pod("urgent").having(priority=5))
    batches.buffer.note_deleted("default/c")
    batches.buffer.take([], accepts=True)
    assert batches.place() == ["d", "e"]
    assert batches.place() == ["urgent", "f"]  # the order has fewer pods than the batch
    assert_state_agrees(cluster)


def test_order_expires_if_pods_have_arrived(batches: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrival_order, "LONGEST_SECONDS", -1.0)
    batches.arrive(*(a_pod(name) for name in "abcdef"))
    assert batches.place() == ["a", "b"]
    batches.arrive(a_pod("urgent").having(priority=5))
    # The newest pod of the order is replaced: its key is again the newest.
    batches.buffer.note_deleted("default/f")
    batches.buffer.take([], accepts=True)
    batches.arrive(a_pod("f"))
    assert batches.place() == ["urgent", "c"]


def test_order_ends_if_a_namespace_exceeds_its_share(cluster: Cluster, batches: Batches) -> None:
    batches.arrive(*(a_pod(name, namespace) for name, namespace in zip("abcdef", ["slow", "good"] * 3, strict=True)))
    assert batches.place() == ["a", "b"]
    Cluster.objects.filter(pk=cluster.pk).update(decision_time={"slow": (5.0, timezone.now().timestamp())})
    assert batches.place() == ["d", "f"]


def test_pods_that_join_the_queue_do_not_delay_others(batches: Batches) -> None:
    """Regression: gated pods counted towards the limit of a batch, and an urgent pod waited for all of them."""
    batches.arrive(*(a_pod(f"gated-{number}").having(gates=("wait",)) for number in range(9)))
    batches.arrive(a_pod("urgent").having(priority=5))
    assert batches.place() == ["urgent"]
    assert len(batches.joined) == 9


def test_batch_after_a_conflict_has_the_same_pods(batches: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    batches.arrive(*(a_pod(name) for name in "abcd"))

    def conflicting(*_: Any, **__: Any) -> Any:
        raise Conflict("another was faster")

    with monkeypatch.context() as patched:
        patched.setattr(arrivals, "record_placed_arrivals", conflicting)
        with pytest.raises(Conflict):
            batches.place()
    assert batches.place() == ["a", "b"]


def test_decision_time_is_committed_with_the_placements(cluster: Cluster, lease: Lease) -> None:
    cache = cache_of(cluster.pk)
    cache.decision_seconds["team-a"] = 2.0
    place(lease, a_pod("p"))
    assert Cluster.objects.get().decision_time["team-a"][0] == 2.0
    assert cache.decision_seconds == {}  # the time of a single pod is not counted
    place(lease, a_pod("q"), a_pod("r"))
    assert set(cache.decision_seconds) | Cluster.objects.get().decision_time.keys() == {"default", "team-a"}


def test_namespaces_alternate_if_more_pods_arrive_than_are_placed(cluster: Cluster, lease: Lease) -> None:
    flood = [a_pod(f"p{number}").having(namespace="team-a") for number in range(3)]
    batch = try_to_place(lease, *flood, a_pod("q"), most=2)
    assert [result.waiting.spec.key for result in batch.results] == ["team-a/p0", "default/q"]


def test_arrivals_of_a_namespace_above_its_share_come_last(cluster: Cluster, lease: Lease) -> None:
    cache_of(cluster.pk).decision_seconds["team-a"] = 2.0
    place(lease, a_pod("first"))
    batch = try_to_place(lease, a_pod("p").having(namespace="team-a"), a_pod("q"), most=1)
    assert [result.waiting.spec.key for result in batch.results] == ["default/q"]


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(a_pod("p").cpu(9), id="does not fit"),
        pytest.param(a_pod("p").gang("g", 2), id="belongs to a gang"),
        pytest.param(a_pod("p").having(gates=("wait",)), id="has a scheduling gate"),
        pytest.param(a_pod("p").policy("unknown"), id="names an unknown policy"),
        pytest.param(a_pod("p").labelled(**{WORKLOAD_LABEL: "w-1"}), id="comes from a submission"),
    ],
)
def test_pods_that_cannot_be_placed_directly_are_queued(cluster: Cluster, lease: Lease, pod: PodBuilder) -> None:
    assert place(lease, pod) == []
    assert not Pod.objects.exists()
    assert_state_agrees(cluster)


@pytest.mark.parametrize(
    ("due", "most"),
    [
        pytest.param([a_pod("w").having(priority=4)], 200, id="an arriving pod has a higher priority"),
        pytest.param([a_pod("w1").having(priority=5), a_pod("w2").having(priority=5)], 1, id="for several batches"),
    ],
)
def test_arrivals_join_the_queue_behind_due_pods(
    cluster: Cluster, lease: Lease, due: list[PodBuilder], most: int
) -> None:
    apply_changes(cluster.pk, Changes(pods=[arriving(pod) for pod in due]), epoch=1)
    assert try_to_place(lease, a_pod("p").having(priority=5), most=most) == PlacedBatch()


def test_arrivals_join_the_queue_of_a_namespace_above_its_share(cluster: Cluster, lease: Lease) -> None:
    apply_changes(cluster.pk, Changes(pods=[arriving(a_pod("waiting"))]), epoch=1)
    Cluster.objects.update(decision_time={"default": (2.0, timezone.now().timestamp())})
    assert try_to_place(lease, a_pod("p")) == PlacedBatch()


@pytest.mark.parametrize("in_flight", [0, MAX_BINDINGS - MIN_ARRIVALS])
def test_due_pods_of_one_batch_are_decided_before_arrivals(
    cluster: Cluster, lease: Lease, monkeypatch: pytest.MonkeyPatch, in_flight: int
) -> None:
    apply_changes(cluster.pk, Changes(pods=[arriving(a_pod("waiting").cpu(9))]), epoch=1)
    leading.release(lease)
    monkeypatch.setattr(BindingsInFlight, "start", lambda self, lease, placed: None)
    nothing: Any = None
    host = InformerHost(cluster, nothing)
    try:
        host.bindings.count = in_flight
        batch = host.place_arrivals(waiting(a_pod("p")), 1)
    finally:
        host.close()
    assert [result.waiting.spec.name for result in batch.results] == ["p"]
    assert Pod.objects.get(name="waiting").state == "never-fits"
    assert_state_agrees(cluster)


@pytest.fixture
def host(cluster: Cluster, lease: Lease, monkeypatch: pytest.MonkeyPatch) -> Iterator[InformerHost]:
    """Return a host that leads the cluster and sends no bindings."""
    leading.release(lease)
    monkeypatch.setattr(BindingsInFlight, "start", lambda self, lease, placed: None)
    nothing: Any = None
    made = InformerHost(cluster, nothing)
    yield made
    made.close()


def test_arrivals_join_the_queue_if_pods_become_due_repeatedly(
    cluster: Cluster, host: InformerHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise they would wait for the end of the retries of other pods."""
    apply_changes(cluster.pk, Changes(pods=[arriving(a_pod("waiting").cpu(9))]), epoch=1)
    decide = host._loop.iterate

    def decide_and_requeue(lease: Lease) -> Any:
        iteration = decide(lease)
        Pod.objects.filter(name="waiting").update(queued=True, not_before=None)
        host._loop.cache.expire()
        return iteration

    monkeypatch.setattr(host._loop, "iterate", decide_and_requeue)
    batch = host.place_arrivals(waiting(a_pod("p")), 1)
    assert (batch.results, batch.others_wait) == ([], False)


def test_host_leaves_only_effects_of_recent_placements(host: InformerHost, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not host.leaves_effects
    host.place_arrivals(waiting(a_pod("p")), 1)
    assert host.leaves_effects
    later = (
        time.monotonic() + bindings_in_flight.BACKLOG_SECONDS
    )  # the host may not decide, so it does not write the effects
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert not host.leaves_effects


def test_backlog_lasts_while_its_bindings_are_sent(host: InformerHost) -> None:
    host.bindings.count = 17
    assert not host._has_backlog(0.0, is_deciding=False)
    assert host._has_backlog(1.0, is_deciding=True)
    assert host._has_backlog(1.9, is_deciding=False)
    assert not host._has_backlog(2.1, is_deciding=False)  # the API server is slow
    assert host._has_backlog(3.0, is_deciding=True)
    host.bindings.count = 16
    assert not host._has_backlog(3.1, is_deciding=False)


def test_arrivals_are_placed_after_the_due_pods_were_decided(cluster: Cluster, lease: Lease) -> None:
    """Regression: for 50 ms after the decision, the known state still contained due pods."""
    apply_changes(cluster.pk, Changes(pods=[arriving(a_pod("waiting").cpu(9))]), epoch=1)
    (decided,) = SchedulingLoop(BindingHost(), cluster.pk, "live", 200).iterate(lease).results
    assert decided.verdict is Verdict.NEVER_FITS
    scheduler = ArrivalScheduler(cache_of(cluster.pk), "live")
    assert scheduler.place(waiting(a_pod("p")), lease, 1, most=200, lag=60.0).results
    assert_state_agrees(cluster)


def test_lost_informer_lease_places_nothing(cluster: Cluster, lease: Lease) -> None:
    Connection.objects.update(follower_epoch=2)
    assert place(lease, a_pod("p")) == []


def test_shadow_mode_places_nothing(cluster: Cluster, lease: Lease) -> None:
    Connection.objects.update(shadow_of="default-scheduler")
    assert place(lease, a_pod("p")) == []


def test_any_commit_in_between_is_a_conflict(cluster: Cluster, lease: Lease, monkeypatch: pytest.MonkeyPatch) -> None:
    record = arrivals.record_placed_arrivals

    def record_late(*arguments: Any, **named: Any) -> Any:
        apply_changes(cluster.pk, Changes(pods=[arriving(a_pod("other"))]), epoch=1)
        return record(*arguments, **named)

    monkeypatch.setattr(arrivals, "record_placed_arrivals", record_late)
    with pytest.raises(Conflict):
        try_to_place(lease, a_pod("p"))
    assert [pod.name for pod in Pod.objects.all()] == ["other"]
    assert_state_agrees(cluster)


def test_pod_of_the_same_name_that_is_placed_waits_for_its_end(cluster: Cluster, lease: Lease) -> None:
    assert place(lease, a_pod("p"))
    scheduler = ArrivalScheduler(cache_of(cluster.pk), "live")
    batch = scheduler.place(waiting(a_pod("p"), uid="another"), lease, 1, most=200)
    assert batch == PlacedBatch(tried=frozenset({"default/p"}), others_wait=True)
    assert Pod.objects.count() == 1
    assert_state_agrees(cluster)


def test_name_of_a_live_pod_is_a_conflict(cluster: Cluster, lease: Lease) -> None:
    apply_changes(cluster.pk, Changes(pods=[arriving(a_pod("p"))]), epoch=1)
    Pod.objects.update(queued=False)
    scheduler = ArrivalScheduler(cache_of(cluster.pk), "live")
    assert scheduler.place(waiting(a_pod("p"), uid="another"), lease, 1, most=200) == PlacedBatch()
    assert Pod.objects.get().state == "pending"
    assert_state_agrees(cluster)


def test_next_transaction_writes_the_effects_of_a_placement_once(cluster: Cluster, lease: Lease) -> None:
    place(lease, a_pod("p").cpu(2))
    assert Cluster.objects.get().effects_due_since is not None
    for _ in range(2):
        write_placement_effects(cluster.pk)
    live = Cluster.objects.get()
    assert (live.effects_due_since, live.requested["cpu"], Node.objects.get().requested["cpu"]) == (None, 2000, 2000)
    assert Node.objects.get().pods == 1
    workload = Workload.objects.get()
    assert (workload.state, [state for state, _ in workload.history]) == ("binding", ["pending", "binding"])
    assert Pod.objects.get().decision_id == Decision.objects.get().pk
    assert AuditEntry.objects.filter(action="workload.submit", object_name=workload.pk).count() == 1
    topics = OutboxEvent.objects.values_list("topic", flat=True)
    assert {"decisions", "cluster:live"} <= set(topics)
    assert f"workload:{workload.pk}" not in topics  # no client has subscribed
    assert_state_agrees(cluster)


def apply_with_effects_left(cluster: Cluster, **changes: Any) -> None:
    """Write changes as an informer process does that writes the effects of its placements later."""
    apply_changes(cluster.pk, Changes(**changes), epoch=1, leaves_effects=True)


def decide_with_effects_left(cluster: Cluster, lease: Lease) -> Result:
    """Decide the due pod as an informer process does that writes the effects of its placements later."""
    host = BindingHost()
    host.leaves_effects = True
    (result,) = SchedulingLoop(host, cluster.pk, "live", 200).iterate(lease).results
    return result


@pytest.mark.parametrize("is_same_process", [True, False])
def test_queued_pods_leave_the_effects_of_earlier_placements(
    cluster: Cluster, lease: Lease, django_capture_on_commit_callbacks: Commits, is_same_process: bool
) -> None:
    with django_capture_on_commit_callbacks(execute=is_same_process):
        place(lease, a_pod("p").cpu(2))
    apply_with_effects_left(cluster, pods=[arriving(a_pod("waiting").cpu(9))])
    assert decide_with_effects_left(cluster, lease).verdict is Verdict.NEVER_FITS
    assert Cluster.objects.get().effects_due_since is not None
    assert Node.objects.get().pods == 0
    assert_state_agrees(cluster)
    assert written_effects(cluster)[0] == (2000, 1)
    assert_state_agrees(cluster)


def test_placement_of_a_queued_pod_writes_earlier_effects(cluster: Cluster, lease: Lease) -> None:
    place(lease, a_pod("p").cpu(2))
    apply_with_effects_left(cluster, pods=[arriving(a_pod("waiting").cpu(1))])
    assert decide_with_effects_left(cluster, lease).verdict is Verdict.PLACED
    assert Cluster.objects.get().effects_due_since is None
    assert (Node.objects.get().requested["cpu"], Node.objects.get().pods) == (3000, 2)
    assert_state_agrees(cluster)


@pytest.mark.parametrize(
    ("changes", "pods"),
    [
        pytest.param({"pods_gone": ["default/p"], "stopped": {"uid-p"}}, 0, id="a pod ended"),
        pytest.param({"nodes": [a_node("n2").build()]}, 1, id="a node was added"),
    ],
)
def test_changed_loads_or_facts_write_earlier_effects(
    cluster: Cluster, lease: Lease, changes: dict[str, Any], pods: int
) -> None:
    place(lease, a_pod("p").cpu(2))
    apply_with_effects_left(cluster, **changes)
    assert Cluster.objects.get().effects_due_since is None
    assert Node.objects.get(name="n1").pods == pods
    assert_state_agrees(cluster)


@pytest.mark.parametrize("is_same_process", [True, False])
def test_node_deleted_before_its_effects_keeps_the_reservation(
    cluster: Cluster, lease: Lease, django_capture_on_commit_callbacks: Commits, is_same_process: bool
) -> None:
    """Regression: the node had no load yet, so its row was deleted with the reservation of the pod."""
    with django_capture_on_commit_callbacks(execute=is_same_process):
        place(lease, a_pod("p").cpu(2))
    apply_changes(cluster.pk, Changes(nodes_gone=["n1"], nodes=[a_node("n2").build()]), epoch=1)
    node = Node.objects.get(name="n1")
    assert (node.gone, node.ready, node.pods, node.requested["cpu"]) == (True, False, 1, 2000)
    assert Reservation.objects.get(active=True).node == node
    assert_state_agrees(cluster)


def test_empty_node_is_deleted_although_effects_are_due(cluster: Cluster, lease: Lease) -> None:
    apply_changes(cluster.pk, Changes(nodes=[a_node("n2").build()]), epoch=1)
    place(lease, a_pod("p").cpu(2))
    assert Pod.objects.get().node == Node.objects.get(name="n1")
    client = Listener("node:live/n2")
    apply_changes(cluster.pk, Changes(nodes_gone=["n2"]), epoch=1)
    assert list(Node.objects.values_list("name", "pods")) == [("n1", 1)]
    assert list(OutboxEvent.objects.filter(topic=client.topic).values_list("data", flat=True)) == [NO_NODE]
    assert_state_agrees(cluster)


def test_effects_of_two_transactions_are_written_together(cluster: Cluster, lease: Lease) -> None:
    place(lease, a_pod("a").cpu(1))
    place(lease, a_pod("b").cpu(2))
    write_placement_effects(cluster.pk)
    assert (Node.objects.get().requested["cpu"], Node.objects.get().pods) == (3000, 2)


def written_effects(cluster: Cluster) -> tuple[Any, ...]:
    """Write the effects of all placements; return what they changed, and the statements that read reservations."""
    with CaptureQueriesContext(connection) as queries:
        write_placement_effects(cluster.pk)
    node, feed = Node.objects.get(), OutboxEvent.objects.filter(topic="decisions").latest("id").data
    return (
        (node.requested["cpu"], node.pods),
        sorted(Workload.objects.values_list("name", "state")),
        list(Pod.objects.filter(decision=None)),
        sorted((entry["pod"], entry["node"], entry["summary"]) for entry in feed.values()),
        [query["sql"] for query in queries if 'FROM "placement_reservation"' in query["sql"]],
    )


@pytest.mark.parametrize("is_same_process", [True, False])
def test_effects_do_not_depend_on_the_process(
    cluster: Cluster, lease: Lease, django_capture_on_commit_callbacks: Commits, is_same_process: bool
) -> None:
    for name, cpus in (("a", 1), ("b", 2)):
        with django_capture_on_commit_callbacks(execute=is_same_process):
            place(lease, a_pod(name).cpu(cpus))
    load, workloads, undecided, feed, read = written_effects(cluster)
    assert (load, undecided) == ((3000, 2), [])
    assert workloads == [("a", "binding"), ("b", "binding")]
    assert feed == sorted((f"default/{row.pod_name}", "n1", str(row.summary)) for row in Decision.objects.all())
    assert len(read) == (0 if is_same_process else 1)


def test_placements_of_another_process_are_read(
    cluster: Cluster, lease: Lease, django_capture_on_commit_callbacks: Commits
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        place(lease, a_pod("a").cpu(1))
    place(lease, a_pod("b").cpu(2))  # without its callbacks, as if another process had committed it
    assert written_effects(cluster)[0] == (3000, 2)


def test_effects_of_a_placement_after_those_of_another_are_written_once(
    cluster: Cluster, lease: Lease, django_capture_on_commit_callbacks: Commits
) -> None:
    for name in ("a", "b"):
        with django_capture_on_commit_callbacks(execute=True):
            place(lease, a_pod(name).cpu(1))
        write_placement_effects(cluster.pk)  # without its callbacks: the placements stay in memory
    assert (Node.objects.get().requested["cpu"], Node.objects.get().pods) == (2000, 2)


@pytest.fixture
def bindings(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[BindingsInFlight]:
    """Bindings of an API server that accepts all of them."""

    def write(api: Any, name: str, request: BindingRequest, **_: Any) -> BindingOutcome:
        return BindingOutcome(request.pod_id, BindingResult.BOUND)

    monkeypatch.setattr(binding_cycle, "write", write)
    with ThreadPoolExecutor(1) as threads:
        yield BindingsInFlight(cluster, Api(client.Configuration()), threads, lambda lease: True)


def bind(bindings: BindingsInFlight, lease: Lease, results: Sequence[Result]) -> None:
    bindings.start(lease, results)
    while bindings.count:
        bindings.take_results()


def test_bindings_of_a_backlog_are_confirmed_later(lease: Lease, bindings: BindingsInFlight) -> None:
    bind(bindings, lease, place(lease, a_pod("a").cpu(1)))
    assert bindings.confirm_due(100.0, is_idle=False, has_backlog=True)  # the first one; time in seconds
    bind(bindings, lease, place(lease, a_pod("b").cpu(1)))
    assert not bindings.confirm_due(104.0, is_idle=False, has_backlog=True)
    assert bindings.confirm_due(106.0, is_idle=False, has_backlog=True)
    bind(bindings, lease, place(lease, a_pod("c").cpu(1)))
    assert bindings.confirm_due(107.0, is_idle=False)
    assert set(Pod.objects.values_list("state", flat=True)) == {"bound"}


def test_late_bindings_of_a_backlog_are_confirmed_early(
    lease: Lease, bindings: BindingsInFlight, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    bind(bindings, lease, place(lease, a_pod("a").cpu(1)))
    assert bindings.confirm_due(now, is_idle=False, has_backlog=True)  # the first one
    bind(bindings, lease, place(lease, a_pod("b").cpu(1)))
    assert not bindings.confirm_due(now + 1, is_idle=False, has_backlog=True)
    monkeypatch.setattr(bindings_in_flight, "LATE_SECONDS", -60.0)
    assert bindings.confirm_due(now + 1, is_idle=False, has_backlog=True)
    # A slow API server accepts all bindings late; they still share a transaction every half second.
    bind(bindings, lease, place(lease, a_pod("c").cpu(1)))
    assert not bindings.confirm_due(now + 1.4, is_idle=False, has_backlog=True)
    assert bindings.confirm_due(now + 1.6, is_idle=False, has_backlog=True)


def test_bindings_above_the_limit_follow_with_the_next_call(
    lease: Lease, bindings: BindingsInFlight, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bindings_in_flight, "CONFIRM_AT_ONCE", 2)
    bind(bindings, lease, place(lease, *(a_pod(f"p{number}").cpu(1) for number in range(5))))
    bound = []
    while bindings.confirm_due(100.0, is_idle=False, has_backlog=True):
        bound.append(Pod.objects.filter(state="bound").count())
    assert bound == [2, 4, 5]


def test_confirmation_of_a_binding_keeps_the_cached_state(
    cluster: Cluster, lease: Lease, bindings: BindingsInFlight
) -> None:
    bind(bindings, lease, place(lease, a_pod("a").cpu(1)))
    assert bindings.confirm_due(time.monotonic(), is_idle=True)
    assert Pod.objects.get().state == "bound"
    with CaptureQueriesContext(connection) as queries:
        place(lease, a_pod("b").cpu(1))
    assert not [query["sql"] for query in queries if 'FROM "placement_reservation"' in query["sql"]]
    assert_state_agrees(cluster)


def test_sweep_writes_only_late_effects(cluster: Cluster, lease: Lease) -> None:
    place(lease, a_pod("p").cpu(2))
    sweep.run()
    assert Node.objects.get().pods == 0
    Reservation.objects.update(created_at=timezone.now() - sweep.EFFECTS_LATE - timedelta(seconds=1))
    sweep.run()
    assert Node.objects.get().pods == 1


def test_end_of_a_pod_without_written_effects_leaves_no_load(cluster: Cluster, lease: Lease) -> None:
    place(lease, a_pod("p").cpu(2))
    gone = arriving(a_pod("p"))
    apply_changes(cluster.pk, Changes(pods_gone=[gone.key], stopped={gone.uid}), epoch=1)
    assert (Pod.objects.get().state, Node.objects.get().pods) == ("cancelled", 0)
    assert Node.objects.get().requested.get("cpu", 0) == 0
    assert_state_agrees(cluster)


ZONE = "topology.kubernetes.io/zone"


def place_with_node_labels(cluster: Cluster, lease: Lease) -> tuple[Pod, ObservedPod]:
    """Place pod `p` on a node in zone z1; return its row, and the pod as the API server sends it after the binding."""
    apply_changes(cluster.pk, Changes(nodes=[a_node("n2").labelled({ZONE: "z1"}).build()]), epoch=1)
    pod = a_pod("p").on_nodes_with(**{ZONE: "z1"})
    scheduler = ArrivalScheduler(cache_of(cluster.pk), "live")
    (result,) = scheduler.place(waiting(pod), lease, 1, most=200, copies_labels=True).results
    assert result.reserved_spec is not None
    assert result.reserved_spec.labels == {ZONE: "z1"}
    assert_state_agrees(cluster)
    row = Pod.objects.select_related("node").get()
    seen = arriving(pod.labelled(**{ZONE: "z1"}))
    return row, msgspec.structs.replace(seen, node_name="n2")


def test_bound_pod_with_the_labels_of_its_node_changes_no_reservation(cluster: Cluster, lease: Lease) -> None:
    row, bound = place_with_node_labels(cluster, lease)
    apply_changes(cluster.pk, Changes(pods=[bound]), epoch=1)
    (reservation,) = Reservation.objects.all()
    assert (reservation.request.labels, reservation.revision) == ({ZONE: "z1"}, row.reservations.get().revision)
    assert row.spec.labels == {}  # as it was decided
    assert_state_agrees(cluster)


def test_bound_pod_without_the_labels_of_its_node_is_reserved_without_them(cluster: Cluster, lease: Lease) -> None:
    _, bound = place_with_node_labels(cluster, lease)
    assert bound.spec is not None
    unlabelled = msgspec.structs.replace(bound, spec=msgspec.structs.replace(bound.spec, labels={}))
    apply_changes(cluster.pk, Changes(pods=[unlabelled]), epoch=1)
    assert Reservation.objects.get(active=True).request.labels == {}
    assert_state_agrees(cluster)


@pytest.mark.parametrize("copies", [True, False])
def test_pod_of_the_queue_is_reserved_with_the_labels_of_its_node(cluster: Cluster, lease: Lease, copies: bool) -> None:
    apply_changes(cluster.pk, Changes(nodes=[a_node("n2").labelled({ZONE: "z1"}).build()]), epoch=1)
    pod = a_pod("p").on_nodes_with(**{ZONE: "z1"}).labelled(app="web")
    apply_changes(cluster.pk, Changes(pods=[arriving(pod)]), epoch=1)
    (result,) = SchedulingLoop(BindingHost(copies_labels=copies), cluster.pk, "live", 200).iterate(lease).results
    assert (result.reserved_spec is not None) is copies
    assert_state_agrees(cluster)
    before = Reservation.objects.get()
    assert before.request.labels == ({"app": "web", ZONE: "z1"} if copies else {"app": "web"})
    bound = msgspec.structs.replace(arriving(pod.labelled(app="web", **{ZONE: "z1"})), node_name="n2")
    apply_changes(cluster.pk, Changes(pods=[bound]), epoch=1)
    after = Reservation.objects.get(active=True)
    assert after.request.labels == {"app": "web", ZONE: "z1"}
    assert (after.pk == before.pk) is copies  # reserved again only if the labels were not expected
    assert_state_agrees(cluster)


def test_placed_arrival_requeues_dependent_pods(cluster: Cluster, lease: Lease) -> None:
    hostname = "kubernetes.io/hostname"
    apply_changes(cluster.pk, Changes(nodes=[a_node("n1").labelled({hostname: "n1"}).build()]), epoch=1)
    follower = a_pod("follower").near(hostname, app="leader")
    apply_changes(cluster.pk, Changes(pods=[arriving(follower)]), epoch=1)
    loop = SchedulingLoop(BindingHost(), cluster.pk, "live", 200)
    assert [result.verdict.value for result in loop.iterate(lease).results] == ["not-now"]
    assert not Pod.objects.get(name="follower").queued
    place(lease, a_pod("leader").labelled(app="leader"))
    write_placement_effects(cluster.pk)
    assert Pod.objects.get(name="follower").queued
