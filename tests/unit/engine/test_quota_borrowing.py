"""Teams stay within their quotas, borrow unused capacity, and return it when it is claimed."""

from __future__ import annotations

import pytest

from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.objects.cluster import ElasticQuota
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.engine.framework.cycle import Scheduler
from tests.builders import NodeBuilder, PodBuilder, a_node, a_pod
from tests.unit.engine.fleet import policy_of, rebuilt

POLICY = policy_of("node-ready", "quota", "resource-fit", "least-allocated", "preemption")
GIB = 2**30


def quota(namespace: str, least: int = 4, most: int | None = 6) -> ElasticQuota:
    bounds = () if most is None else (("cpu", most * 1000),)
    return ElasticQuota(namespace, namespace, (("cpu", least * 1000),) if least else (), bounds)


def deciding(*quotas: ElasticQuota, nodes: list[NodeBuilder] | None = None) -> Scheduler:
    reports = [node.build() for node in nodes or [a_node("n").cpu("8")]]
    return Scheduler(ClusterState(reports, quotas=quotas), POLICY, evicts=True)


def pod(namespace: str, name: str, cpu: str = "2", priority: int = 0) -> PodBuilder:
    return a_pod(name, namespace).cpu(cpu).memory("1Gi").priority(priority)


def running(scheduler: Scheduler) -> list[str]:
    return sorted(scheduler.state.placed_pods)


def refused(scheduler: Scheduler, asked: PodBuilder) -> tuple[Verdict, str]:
    built = asked.build()
    outcome = scheduler.schedule(built)
    assert outcome.node is None
    diagnosis = diagnose(scheduler, built)
    return diagnosis.verdict, diagnosis.reasons[0].code


@pytest.mark.parametrize("nodes", [1, 2], ids=["one node of 8 CPUs", "two nodes of 4 CPUs"])
def test_capacity_scheduling_readme_example(nodes: int) -> None:
    # 8 CPUs, two quotas of min 4 and max 6, pods of 2. q1 asks for 4 pods: 6 of 6 CPUs run, the fourth pends.
    fleet = [a_node(f"n{i}").cpu(str(8 // nodes)) for i in range(nodes)]
    scheduler = deciding(quota("q1"), quota("q2"), nodes=fleet)
    for name in "abc":
        assert scheduler.schedule(pod("q1", name).build()).node
    assert refused(scheduler, pod("q1", "d")) == (Verdict.NOT_NOW, "QuotaMaxExceeded")
    # q2 asks for 2: the first takes the 2 CPUs that are free, the second gets back 2 of the 2 that q1 borrowed.
    first = scheduler.schedule(pod("q2", "e").build())
    assert first.node
    assert not first.evicted
    second = scheduler.schedule(pod("q2", "f").build())
    assert second.node
    assert [placed.pod.namespace for placed in second.evicted] == ["q1"]
    assert [key.partition("/")[0] for key in running(scheduler)] == ["q1", "q1", "q2", "q2"]
    # Now both use their guaranteed amount, and neither takes from the other again.
    assert refused(scheduler, pod("q1", "d")) == (Verdict.NOT_NOW, "QuotaBorrowingExhausted")
    assert refused(scheduler, pod("q2", "g")) == (Verdict.NOT_NOW, "QuotaBorrowingExhausted")
    assert len(running(scheduler)) == 4


def test_guaranteed_share_is_reclaimed_even_from_higher_priority() -> None:
    scheduler = deciding(quota("q1", most=8), quota("q2"))
    for name in "abcd":
        scheduler.schedule(pod("q1", name, priority=100 - (name == "c")).build())
    assert [b.pod.name for b in scheduler.schedule(pod("q2", "e", priority=-5).build()).evicted] == ["c"]


def test_only_borrowed_resources_are_reclaimed() -> None:
    # q1 borrows 2 of its 6 CPUs. The claim needs 4 at once, and taking more than the 2 would cut into its min.
    scheduler = deciding(quota("q1"), quota("q2"))
    for name in "abc":
        scheduler.schedule(pod("q1", name).build())
    assert scheduler.schedule(pod("q2", "large", "4").build()).evicted
    assert len([key for key in running(scheduler) if key.startswith("q1/")]) == 2
    assert refused(scheduler, pod("q2", "more", "1")) == (Verdict.NOT_NOW, "QuotaBorrowingExhausted")


def test_team_above_its_min_preempts_only_its_own_pods() -> None:
    scheduler = deciding(quota("q1"), quota("q2"))
    for name, priority in (("a", 5), ("b", 1), ("c", 5)):
        scheduler.schedule(pod("q1", name, priority=priority).build())
    scheduler.schedule(pod("q2", "e", priority=0).build())
    assert [b.pod.key for b in scheduler.schedule(pod("q1", "d", priority=9).build()).evicted] == ["q1/b"]


def test_request_above_the_maximum_never_fits() -> None:
    assert refused(deciding(quota("q1"), quota("q2")), pod("q1", "x", "7")) == (
        Verdict.NEVER_FITS, "QuotaMaxExceeded"
    )  # fmt: skip


def test_rejection_states_use_request_and_limit() -> None:
    scheduler = deciding(quota("q1"), quota("q2"))
    for name in "abc":
        scheduler.schedule(pod("q1", name).build())
    summary = diagnose(scheduler, pod("q1", "d").build()).summary
    name = scheduler.state.quotas.limits["q1"].name
    assert name
    assert f"quota {name} of q1 would be exceeded: cpu 6 + 2 of 6" in summary


def test_rejection_names_the_exhausted_quota() -> None:
    scheduler = deciding(quota("rich", 8, None), quota("poor", 0, None))
    scheduler.schedule(pod("rich", "all", "8").build())
    name = scheduler.state.quotas.limits["poor"].name
    summary = diagnose(scheduler, pod("poor", "more", "1").build()).summary
    assert (
        f"quota {name} of poor cannot borrow more, because the guaranteed resources of all quotas are in use: "
        "cpu 8 + 1 of 8"
    ) in summary


def test_request_above_all_guarantees_never_fits() -> None:
    scheduler = deciding(quota("q1", 4, None), quota("q2", 2, None))
    assert refused(scheduler, pod("q1", "all", "6.1")) == (Verdict.NEVER_FITS, "QuotaBorrowingExhausted")
    assert scheduler.schedule(pod("q1", "fits", "6").build()).node
    assert refused(scheduler, pod("q2", "waits", "6")) == (Verdict.NOT_NOW, "QuotaBorrowingExhausted")


def test_quota_without_min_or_max() -> None:
    scheduler = deciding(quota("rich", 8, None), quota("poor", 0, None))
    assert scheduler.schedule(pod("poor", "borrows", "8").build()).node
    assert [b.pod.key for b in scheduler.schedule(pod("rich", "claims", "1").build()).evicted] == ["poor/borrows"]
    assert refused(scheduler, pod("poor", "again", "8")) == (Verdict.NOT_NOW, "QuotaBorrowingExhausted")


def test_unguaranteed_resources_are_not_shared() -> None:
    # Quotas in CPUs do not limit memory, so pods that also request memory are not rejected for it.
    assert deciding(quota("q1"), quota("q2")).schedule(pod("q1", "x").memory("20Gi").build()).node


def test_pods_without_a_quota_are_unrestricted() -> None:
    scheduler = deciding(quota("q1"), quota("q2"))
    assert scheduler.schedule(pod("free", "x", "8").build()).node
    assert scheduler.state.quotas.remaining("cpu") == 8000


def test_use_follows_the_bookings_on_copies_too() -> None:
    scheduler = deciding(quota("q1"), quota("q2"))
    for name in "abc":
        scheduler.schedule(pod("q1", name).build())
    fork = scheduler.state.fork()
    fork.forget("q1/a")
    assert fork.quotas.used["q1"] == {"cpu": 4000, "memory": 2 * GIB, "pods": 2}
    assert scheduler.state.quotas.used["q1"] == {"cpu": 6000, "memory": 3 * GIB, "pods": 3}
    again = ClusterState(rebuilt(scheduler.state).reports, quotas=[quota("q1")])
    assert again.digest() != scheduler.state.digest()


def test_policy_without_the_plugin_ignores_quotas() -> None:
    assert "quota" not in {use.name for use in BUILTIN["default-kube"].plugins}
    plain = policy_of("node-ready", "resource-fit", "preemption")
    state = ClusterState([a_node("n").cpu("8").build()], quotas=[quota("q1")])
    assert Scheduler(state, plain).schedule(pod("q1", "x", "8").build()).node
