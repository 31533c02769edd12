"""The three verdicts, and reasons that count nodes."""

from __future__ import annotations

import pytest

from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.objects.node_report import IsaReport
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.framework.diagnosis import Diagnosis
from tests.builders import PodBuilder, a_node, a_pod
from tests.unit.engine.fleet import HOSTNAME, ZONE, Node, Pod, built, scheduler


def verdict(pod: PodBuilder, nodes: list[Node], running: list[Pod] | None = None) -> Diagnosis:
    return diagnose(scheduler(nodes, running or [], policy="hetsched"), built(pod))


@pytest.mark.parametrize(
    ("pod", "node"),
    [
        (a_pod().cpu(9), a_node("n").cpu(8)),
        (a_pod().requesting("example.com/fpga", 1), a_node("n")),
        (a_pod(), a_node("n").tainted("dedicated")),
        (a_pod().on_nodes_with(disk="ssd"), a_node("n")),
        (a_pod().shaped(required_node="gone"), a_node("n")),
        (a_pod().gpu(1), a_node("n")),
        (a_pod().gpu(1, model="H100"), a_node("n").gpus(1)),
        (a_pod().isa("rv64gc"), a_node("n").isa("x86-64-v3")),
    ],
)
def test_pod_above_the_empty_cluster_never_fits(pod: PodBuilder, node: Node) -> None:
    assert verdict(pod, [node, a_node("m").cpu(0).tainted("other")]).verdict is Verdict.NEVER_FITS


@pytest.mark.parametrize(
    ("pod", "node"),
    [
        (a_pod(), a_node("n").not_ready()),
        (a_pod(), a_node("n").cordoned()),
        (a_pod(), a_node("n").tainted("node.kubernetes.io/not-ready", effect="NoExecute")),
        (a_pod(), a_node("n").tainted("node.kubernetes.io/memory-pressure")),
        (a_pod().near(ZONE, app="web"), a_node("n")),  # rules between pods may be satisfied later
        (a_pod().spread(ZONE, app="web"), a_node("n")),
        (a_pod().gpu(1, memory_mib=1), a_node("n").gpus(1, memory_mib=None)),  # unknown does not mean never
        (a_pod().isa("rv64gc"), a_node("n").isa(None)),
        (a_pod().isa("x86-64-v3"), a_node("n").having(isa=IsaReport("amd64", complete=False))),
    ],
)
def test_changeable_obstacle_is_not_now(pod: PodBuilder, node: Node) -> None:
    assert verdict(pod, [node, a_node("m").cpu(0).tainted("other")]).verdict is Verdict.NOT_NOW


def test_full_cluster_is_not_now() -> None:
    full = [a_pod("r").cpu(8).running_on("n")]
    assert verdict(a_pod(), [a_node("n").cpu(8)], full).verdict is Verdict.NOT_NOW


def test_unknown_fact_with_a_definite_mismatch_never_fits() -> None:
    # The GPU's memory is unknown, but the node is too small in any case.
    pod = a_pod().cpu(9).gpu(1, memory_mib=1)
    assert verdict(pod, [a_node("n").cpu(8).gpus(1, memory_mib=None)]).verdict is Verdict.NEVER_FITS


def test_invalid_pod_is_misconfigured_on_any_cluster() -> None:
    pod = a_pod().wrong("IsaUnknownExtension", "hetsched.io/isa", "no such extension")
    found = verdict(pod, [a_node("n")])
    assert found.verdict is Verdict.MISCONFIGURED
    assert [(reason.code, reason.field) for reason in found.reasons] == [("IsaUnknownExtension", "hetsched.io/isa")]
    assert found.summary.endswith(" is misconfigured: hetsched.io/isa: no such extension")
    outcome = scheduler([a_node("n")]).schedule(built(pod))
    assert outcome.node is None


def test_node_is_counted_for_its_first_rejecting_filter() -> None:
    nodes = [
        a_node("a").not_ready().tainted("x"),  # node-ready comes first
        a_node("b").tainted("x"),
        a_node("c").tainted("x"),
        a_node("d").cpu(2),  # full
    ]
    found = verdict(a_pod(), nodes, [a_pod("r").cpu(2).running_on("d")])
    assert {(reason.plugin, reason.code): reason.nodes for reason in found.reasons} == {
        ("node-ready", "NodeNotReady"): 1,
        ("taints", "UntoleratedTaint"): 2,
        ("resource-fit", "InsufficientResource"): 1,
    }
    assert [(step.plugin, step.before, step.after) for step in found.funnel if step.before != step.after] == [
        ("node-ready", 4, 3), ("taints", 3, 1), ("resource-fit", 1, 0),
    ]  # fmt: skip


def test_summary_has_counts_and_the_largest_reason_first() -> None:
    nodes = [a_node("a").tainted("x"), a_node("b").tainted("x"), a_node("c").cpu(0)]
    assert verdict(a_pod(), nodes).summary == (
        "default/pod never fits this cluster, not even empty: 0 of 3 nodes fit"
        " (2: the taint x:NoSchedule is not tolerated; 1: Insufficient cpu: 1 requested)"
    )


def test_omitted_reasons_are_counted_in_the_summary() -> None:
    """Reasons of nodes that could take the pod are named first; the others are counted, together with their nodes."""
    other = [a_node(f"t{i}{n}").tainted(f"x{i}") for i in range(5) for n in range(2)]
    # 5 taints of 2 nodes each and one full node, the only one that could take the pod once others leave: that one and
    # three of the taints are named, 2 reasons with 4 nodes are left.
    summary = verdict(a_pod().cpu(4), [*other, a_node("z").cpu(4)], [a_pod("r").cpu(1).running_on("z")]).summary
    assert summary == (
        "default/pod does not fit now: 0 of 11 nodes fit (2: the taint x0:NoSchedule is not tolerated; "
        "2: the taint x1:NoSchedule is not tolerated; 2: the taint x2:NoSchedule is not tolerated; "
        "1: Insufficient cpu: 4 requested; 4: 2 other reasons)"
    )
    # All five reasons are named.
    summary = verdict(a_pod().cpu(4), [*other[2:], a_node("z").cpu(4)], [a_pod("r").cpu(1).running_on("z")]).summary
    assert summary.count(";") == 4
    assert "other reasons" not in summary


def test_never_fits_is_explained_by_the_empty_cluster() -> None:
    # Now the node is not Ready; empty and Ready it would still be too small.
    found = verdict(a_pod().cpu(9), [a_node("n").cpu(8).not_ready()])
    assert [reason.code for reason in found.reasons] == ["InsufficientResource"]


def test_rows_that_fewer_pods_could_open_are_known() -> None:
    nodes = [
        a_node("a").cpu(8),  # full, large enough: an eviction could free it
        a_node("b").cpu(1),  # too small even when empty
        a_node("c").cpu(8).tainted("x"),  # no eviction removes a taint
        a_node("d").cpu(8),  # only the neighbour is in the way
    ]
    running = [
        a_pod("big").cpu(8).running_on("a"),
        a_pod("foe").labelled(app="web").running_on("d"),
    ]
    found = verdict(a_pod().cpu(2).away_from(HOSTNAME, app="web"), nodes, running)
    assert found.resolvable == (0, 3)


def test_cluster_without_nodes_is_reported() -> None:
    assert "the cluster has no nodes" in verdict(a_pod(), []).summary


@pytest.mark.parametrize(
    ("absent", "needed", "expected", "missing"),
    [
        (("avx2",), "x86-64-v3", Verdict.NEVER_FITS, ("avx2",)),
        (("avx2",), "x86-64-v1+bmi1", Verdict.NOT_NOW, ()),
        (("x86-64-v3",), "x86-64-v3", Verdict.NEVER_FITS, ("x86-64-v3",)),
        (("x86-64-v3",), "x86-64-v4", Verdict.NEVER_FITS, ("x86-64-v3",)),
        (("x86-64-v3",), "x86-64-v2", Verdict.NOT_NOW, ()),
    ],
)
def test_lower_bound_that_excludes_the_pod_never_fits(
    absent: tuple[str, ...], needed: str, expected: Verdict, missing: tuple[str, ...]
) -> None:
    node = a_node("n").having(isa=IsaReport("amd64", complete=False, absent=absent))
    found = verdict(a_pod().isa(needed), [node])
    (reason,) = found.reasons
    assert (found.verdict, reason.missing) == (expected, missing)
    image = verdict(a_pod().images((f"linux/amd64/{needed[-2:]}",)), [node]) if "+" not in needed else found
    assert image.verdict is expected
