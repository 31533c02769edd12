"""Queueing hints of a rejected pod: as texts, and as events that include every one that lets it fit."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.objects.node_report import NodeReport, Taint, Usage
from hetsched.contracts.objects.policy import PluginUse
from hetsched.contracts.objects.workload import PodSpec
from hetsched.contracts.waits import NODE_FACTS, Event, bits, bits_of, describe_waits
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.explain.diagnosis import diagnose, rejected_rows
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.diagnosis import Diagnosis
from hetsched.engine.framework.policy import Policy
from hetsched.engine.framework.queueing_hints import differences
from tests.builders import NodeBuilder, PodBuilder, a_node, a_pod
from tests.unit.engine.draws import NAMESPACES, mixed_fleets, mixed_pods
from tests.unit.engine.fleet import REGISTRY, built, policy_of

EVERY_FILTER = policy_of(*(info.name for info in REGISTRY if {"filter", "pre-filter"} & set(info.points)))


def state_of(fleet: list[NodeReport], running: list[tuple[PodSpec, str]]) -> ClusterState:
    state = ClusterState(fleet, (), NAMESPACES)
    for pod, name in running:
        state.assume(state.compile(pod), state.row_of[name])
    return state


def fits(state: ClusterState, pod: PodSpec, policy: Policy = EVERY_FILTER) -> bool:
    return Scheduler(state.fork(), policy).schedule(pod).node is not None


def explained(pod: PodBuilder, *nodes: NodeBuilder, policy: Policy = EVERY_FILTER) -> Diagnosis:
    return diagnose(Scheduler(ClusterState([built(node) for node in nodes]), policy), built(pod))


@settings(max_examples=50)
@given(
    fleet=mixed_fleets(),
    other=mixed_fleets(),
    pods=mixed_pods(),
    picks=st.lists(st.integers(0, 6), min_size=12, max_size=12),
    which=st.integers(0, 6),
)
def test_sufficient_changes_match_a_queueing_hint(
    fleet: list[NodeReport], other: list[NodeReport], pods: list[PodSpec], picks: list[int], which: int
) -> None:
    pod, *rest = pods
    names = [node.name for node in fleet]
    running = [(one, names[pick % len(names)]) for one, pick in zip(rest[:-1], picks, strict=False)]
    state = state_of(fleet, running)
    if fits(state, pod):
        return
    waits = bits_of(diagnose(Scheduler(state, EVERY_FILTER), pod).waits_for)

    def expect(changed: ClusterState, *events: Event) -> None:
        assert not fits(changed, pod) or waits & bits(events), (events, waits)

    for index in range(len(running)):
        expect(state_of(fleet, running[:index] + running[index + 1 :]), Event.POD_RELEASED)
    for name in names if rest else ():
        expect(state_of(fleet, [*running, (rest[-1], name)]), Event.POD_PLACED)
    position = which % min(len(fleet), len(other))
    before, after = fleet[position], other[position]
    for field in NodeReport.__struct_fields__:  # one fact after the other, then all of them
        report = msgspec.structs.replace(before, **{field: getattr(after, field)})
        expect(state_of([*fleet[:position], report, *fleet[position + 1 :]], running), *differences(before, report))
    expect(state_of([*fleet[:position], after, *fleet[position + 1 :]], running), *differences(before, after))
    expect(state_of([*fleet, msgspec.structs.replace(after, name="n99")], running), Event.NODE_ADDED)
    for node in fleet:
        if all(name != node.name for _, name in running):
            expect(state_of([report for report in fleet if report is not node], running), Event.NODE_REMOVED)


def test_every_filter_has_queueing_hints() -> None:
    for info in REGISTRY:
        if {"filter", "pre-filter"} & set(info.points):
            assert info.helped_by, info.name


def test_hints_have_a_text() -> None:
    pod = a_pod("p").cpu("4").gpu(2, model="A100")
    found = explained(pod, a_node("full").cpu(2), a_node("bare").cpu(8), policy=policy_of("resource-fit", "gpu-fit"))
    # The first lacks CPU and GPUs, the other only GPUs: a node with CPU alone would not help.
    assert describe_waits(found.waits_for) == "a node with 2 free A100 GPUs"
    assert [wait.plugin for wait in found.waits_for] == ["resource-fit", "gpu-fit"]


def test_text_names_each_sufficient_condition() -> None:
    nodes = a_node("small").cpu(2).gpus(2), a_node("bare").cpu(8)
    found = explained(a_pod("p").cpu("4").gpu(2, model="A100"), *nodes, policy=policy_of("resource-fit", "gpu-fit"))
    assert describe_waits(found.waits_for) == "a node with cpu 4, memory 1Gi free, or a node with 2 free A100 GPUs"


def test_text_omits_insufficient_conditions() -> None:
    policy = policy_of("node-ready", "taints", "resource-fit")
    found = explained(
        a_pod("huge").cpu("256"), a_node("n1").cpu(64), a_node("n2").cpu(64).tainted("gpu"), policy=policy
    )
    assert found.verdict is Verdict.NEVER_FITS
    assert describe_waits(found.waits_for) == "a node with cpu 256, memory 1Gi free"
    # A changed taint of n2 still causes a retry: n2 may have grown by then.
    assert [wait.plugin for wait in found.waits_for] == ["taints", "resource-fit"]


def test_text_joins_conditions_of_one_node() -> None:
    policy = policy_of("taints", "resource-fit")
    found = explained(a_pod("huge").cpu("256"), a_node("n2").cpu(64).tainted("gpu"), policy=policy)
    assert (
        describe_waits(found.waits_for)
        == "a node whose taints the pod tolerates and a node with cpu 256, memory 1Gi free"
    )


def test_text_covers_only_nodes_that_could_fit() -> None:
    """A node that is not Ready, and could not take the pod if it were, is no reason to wait for Ready nodes."""
    board = a_node("board").arch("riscv64", "rv64gc").cpu(4).not_ready()
    full = a_node("full").cpu(16)
    pod = a_pod("p").cpu("16").isa("x86-64-v1")
    state = ClusterState([built(board), built(full)])
    state.assume(state.compile(built(a_pod("r").cpu(8))), state.row_of["full"])
    policy = policy_of("node-ready", "isa-match", "resource-fit")
    found = diagnose(Scheduler(state, policy), built(pod))
    assert describe_waits(found.waits_for) == "a node with cpu 16, memory 1Gi free"
    # Changes of the board's driver still count: it could be another board when it returns.
    assert [wait.plugin for wait in found.waits_for] == ["node-ready", "resource-fit"]
    assert Event.NODE_TAINTS in found.waits_for[0].events


def test_pod_events_do_not_requeue_a_pod_that_never_fits() -> None:
    found = explained(a_pod("p").cpu("64"), a_node("n1").cpu(8))
    assert found.verdict is Verdict.NEVER_FITS
    assert set(found.waits_for[0].events) == {Event.NODE_ADDED, Event.NODE_CAPACITY, Event.DEVICE_CLASS}


def test_empty_cluster_waits_for_a_node() -> None:
    found = explained(a_pod("p"))
    assert describe_waits(found.waits_for) == "a node"
    assert found.waits_for[0].events == (Event.NODE_ADDED,)
    assert found.waits_for[0].plugin == EVERY_FILTER.gates[0].name


def test_invalid_request_waits_for_nothing_and_a_gate_for_its_controller() -> None:
    assert explained(a_pod("p").wrong(), a_node("n1")).waits_for == ()
    gated = msgspec.structs.replace(built(a_pod("p")), gates=("example.com/check",))
    (wait,) = diagnose(Scheduler(ClusterState([built(a_node("n1"))]), EVERY_FILTER), gated).waits_for
    assert wait.text == "the pod's scheduling gate example.com/check to be removed"


def test_node_changes_are_described_by_fact() -> None:
    node = built(a_node("n1"))
    replace = msgspec.structs.replace
    assert differences(node, node) == frozenset()
    assert differences(node, replace(node, observed_at="later", source="x")) == frozenset()
    assert differences(node, replace(node, usage=Usage({"cpu": 1}))) == {Event.NODE_USE}
    assert differences(node, replace(node, taints=(Taint("a"),), labels={"b": "c"})) == {
        Event.NODE_TAINTS,
        Event.NODE_LABELS,
    }
    assert differences(node, replace(node, uid="another")) > NODE_FACTS


# -- verdict, events and filter agree ---------------------------------------------------------------------------------

SPLIT = policy_of("node-ready", "taints", PluginUse("class-split", params={"strict": True}), "resource-fit")


def resting_node(name: str, slots: int = 1) -> NodeBuilder:
    """Return a node whose only GPU is in maintenance."""
    return a_node(name).pods(slots).gpus(1, healthy=False, maintenance=True)


def test_returning_gpu_prevents_the_never_fits_verdict() -> None:
    """The only GPU is in maintenance and the pod slots of its node are full: both pass."""
    fleet = [built(resting_node("n0")), built(a_node("n1").tainted("a"))]
    policy = policy_of("node-ready", "taints", "resource-fit", "gpu-fit")
    state = state_of(fleet, [(built(a_pod("r")), "n0")])
    pod = built(a_pod("p").gpu())
    found = diagnose(Scheduler(state, policy), pod)
    assert found.verdict is Verdict.NOT_NOW
    assert bits_of(found.waits_for) & bits([Event.POD_RELEASED])
    assert {(reason.plugin, reason.nodes) for reason in found.reasons} == {("taints", 1), ("resource-fit", 1)}
    # Preemption uses the same evaluation: no evicted pod brings the GPU back.
    refused = rejected_rows(Scheduler(state, policy), state.compile(pod))
    assert [refused[state.row_of[name]][1] for name in ("n0", "n1")] == [False, False]


def test_gpu_node_in_maintenance_accepts_no_cpu_pods() -> None:
    """A strict class-split rejects by the installed GPUs, now and in the emptied cluster."""
    fleet = [built(resting_node("n0")), built(a_node("n1").tainted("a"))]
    pod = built(a_pod("p"))
    found = diagnose(Scheduler(state_of(fleet, [(built(a_pod("r")), "n0")]), SPLIT), pod)
    assert found.verdict is Verdict.NEVER_FITS
    assert {(reason.plugin, reason.nodes) for reason in found.reasons} == {("taints", 1), ("class-split", 1)}
    assert not fits(state_of(fleet, []), pod, SPLIT)


def test_never_fits_reason_is_the_filter_of_the_empty_cluster() -> None:
    """A node that is rejected now because of its GPU never fits because of its labels, and waits for these."""
    found = explained(
        a_pod("p").gpu().on_nodes_with(disk="ssd"),
        resting_node("n0", slots=10),
        policy=policy_of("gpu-fit", "node-affinity"),
    )
    assert found.verdict is Verdict.NEVER_FITS
    assert [reason.plugin for reason in found.reasons] == ["node-affinity"]
    assert [wait.plugin for wait in found.waits_for] == ["node-affinity"]


@settings(max_examples=50)
@given(fleet=mixed_fleets(), pods=mixed_pods(), picks=st.lists(st.integers(0, 6), min_size=12, max_size=12))
def test_pod_that_never_fits_does_not_fit_after_any_eviction(
    fleet: list[NodeReport], pods: list[PodSpec], picks: list[int]
) -> None:
    """Never means: not after any eviction of all or some pods, on the nodes as they are."""
    pod, *rest = pods
    running = [(one, fleet[pick % len(fleet)].name) for one, pick in zip(rest, picks, strict=False)]
    if diagnose(Scheduler(state_of(fleet, running), EVERY_FILTER), pod).verdict is not Verdict.NEVER_FITS:
        return
    for remaining in (running, running[1:], running[::2], []):
        assert not fits(state_of(fleet, remaining), pod)
