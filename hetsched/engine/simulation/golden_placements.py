"""Evaluate golden placements: one pod, one policy, nodes without any pod.

The scheduling cycle places the pod on the cluster's nodes as if all were Ready, uncordoned, without condition taints,
maintenance or measured usage. The pod is evaluated alone: its gang and its shared volumes or devices are ignored. If
the pod fits no node, but unknown facts are the only reason on some node, the result is *unknown*, not broken.
Invariant: an evaluation leaves the state unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from hetsched.contracts.api.golden import Expectation, GoldenState, GoldenVerdict
from hetsched.contracts.message import Message, joined, shortened
from hetsched.contracts.objects.cards import after_maintenance
from hetsched.contracts.objects.node_report import CONDITION_TAINTS, NodeReport
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.explain.diagnosis import diagnose, unknown_reasons
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.outcome import Outcome
from hetsched.engine.isa.isa_strings import may_have, offered_isa, required_isa
from hetsched.isa import match

_LONGEST = 400


class Golden(msgspec.Struct, frozen=True):
    """One golden placement, ready for evaluation."""

    name: str
    cluster: str
    pod: PodSpec
    expect: Expectation


def empty(reports: Iterable[NodeReport]) -> list[NodeReport]:
    """Return the nodes without pods and without conditions, maintenance or measured usage."""
    return [
        msgspec.structs.replace(
            report,
            ready=True,
            unschedulable=False,
            taints=tuple(taint for taint in report.taints if taint.key not in CONDITION_TAINTS),
            power=None,
            usage=None,
            gpus=report.gpus and tuple(map(after_maintenance, report.gpus)),
        )
        for report in reports
    ]


def alone(pod: PodSpec) -> PodSpec:
    """Return a copy of the pod for evaluation, without gang, selected node and scheduling gates."""
    return msgspec.structs.replace(pod, node_name="", allocation=None, gang=None, gates=())


def judge(scheduler: Scheduler, golden: Golden) -> GoldenVerdict:
    """Evaluate one golden placement; a placed pod of the same name is removed for the evaluation."""

    def result(state: GoldenState, got: Message) -> GoldenVerdict:
        return GoldenVerdict(golden.name, golden.cluster, state, golden.expect.words, shortened(got, _LONGEST))

    if not scheduler.state.reports:
        return result(GoldenState.UNKNOWN, Message("the cluster has no nodes"))
    pod = alone(golden.pod)
    # On the state of a real decision, a pod of this name may be running.
    running = scheduler.state.forget(pod.key)
    try:
        return result(*_check_expectation(scheduler, pod, golden.expect))
    finally:
        if running is not None:
            scheduler.state.restore(running)


def _check_expectation(scheduler: Scheduler, pod: PodSpec, expect: Expectation) -> tuple[GoldenState, Message]:
    outcome = scheduler.schedule(pod, preempts=False)
    if outcome.node is None:
        return _refused(scheduler, pod, expect)
    try:
        if expect.refused is not None:
            return GoldenState.BROKEN, Message("placed on {node}", node=outcome.node)
        return _placed(scheduler, outcome, expect)
    finally:
        scheduler.undo(outcome)


def _refused(scheduler: Scheduler, pod: PodSpec, expect: Expectation) -> tuple[GoldenState, Message]:
    diagnosis = diagnose(scheduler, pod)
    if diagnosis.verdict is expect.refused:
        return GoldenState.KEPT, Message(diagnosis.verdict.value)
    unknown = unknown_reasons(scheduler, pod) if pod.ready else ()
    if unknown:
        return GoldenState.UNKNOWN, Message("unknown: {detail}", detail=unknown[0].message)
    return GoldenState.BROKEN, diagnosis.summary


def _placed(scheduler: Scheduler, outcome: Outcome, expect: Expectation) -> tuple[GoldenState, Message]:
    """Compare the selected node with the expected nodes."""
    assert outcome.node is not None
    report = scheduler.state.reports[outcome.row]
    if expect.nodes:
        known = set(expect.nodes) & scheduler.state.row_of.keys()
        if outcome.node not in expect.nodes and not known:
            return GoldenState.UNKNOWN, Message("{node}; the cluster has none of the expected nodes", node=outcome.node)
        return _is(outcome.node in expect.nodes), Message(outcome.node)
    if expect.selector:
        kept = all(report.labels.get(key) == value for key, value in expect.selector.items())
        has = joined(", ", [f"{key}={report.labels.get(key, 'none')}" for key in sorted(expect.selector)])
        return _is(kept), Message("{node} with {text}", node=outcome.node, text=has)
    if report.isa.native is None:
        return GoldenState.UNKNOWN, Message("{node}, whose instruction set is unknown", node=outcome.node)
    found = match(required_isa(expect.isa), offered_isa(report.isa.native))
    node, native = outcome.node, report.isa.native
    if found.satisfied or not may_have(report.isa, required_isa(expect.isa)):
        return _is(found.satisfied), Message("{node} with {text}", node=node, text=native)
    return GoldenState.UNKNOWN, Message("{node} with {text}; the node may have more features", node=node, text=native)


def _is(kept: bool) -> GoldenState:
    return GoldenState.KEPT if kept else GoldenState.BROKEN
