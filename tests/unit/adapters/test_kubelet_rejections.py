"""The kubelet's result for a bound pod: rejected here, waiting without any help from another node, or running."""

from __future__ import annotations

from typing import Any

import pytest

from hetsched.adapters.kubernetes.pod_failures import refusal, waiting
from hetsched.adapters.objects.fields import FieldView
from hetsched.contracts.objects.fact_conflicts import FactConflict, remaining_conflicts
from hetsched.contracts.objects.node_report import IsaReport, NodeReport
from hetsched.contracts.objects.observed import NodeRefusal


def failed(reason: str, message: str = "", **more: Any) -> FieldView:
    return FieldView({"phase": "Failed", "reason": reason, "message": message, **more})


def container(state: dict[str, Any], last: dict[str, Any] | None = None, phase: str = "Pending") -> FieldView:
    return FieldView({"phase": phase, "containerStatuses": [{"name": "main", "state": state, "lastState": last or {}}]})


@pytest.mark.parametrize(
    ("reason", "message", "facts"),
    [
        ("TopologyAffinityError", "Resources cannot be allocated with Topology locality", ("numa",)),
        ("SMTAlignmentError", "", ("numa",)),
        ("UnexpectedAdmissionError", "Allocate failed: devices unavailable for nvidia.com/gpu, which is", ("gpu",)),
        ("UnexpectedAdmissionError", "not enough cpus available to satisfy request", ("numa",)),
        ("UnexpectedAdmissionError", "context deadline exceeded", ()),
        ("OutOfcpu", "Node didn't have enough resource: cpu", ("allocatable",)),
        ("OutOfnvidia.com/gpu", "", ("gpu",)),
        ("NodeAffinity", "Predicate NodeAffinity failed", ("labels",)),
        ("Evicted", "Pod was rejected: The node had condition: [MemoryPressure]", ()),
    ],
)
def test_kubelet_rejection_is_attributed_to_the_node(reason: str, message: str, facts: tuple[str, ...]) -> None:
    assert refusal(failed(reason, message)) == NodeRefusal(reason, message, facts)


@pytest.mark.parametrize(
    "state",
    [
        {"waiting": {"reason": "ImagePullBackOff", "message": "no match for platform in manifest: not found"}},
        {"waiting": {"reason": "ErrImagePull", "message": "no matching manifest for linux/riscv64 in the list"}},
        {"terminated": {"exitCode": 128, "reason": "StartError", "message": "exec /app: exec format error"}},
    ],
)
def test_image_for_another_machine_contradicts_the_isa(state: dict[str, Any]) -> None:
    found = refusal(container(state))
    assert found is not None
    assert found.facts == ("isa",)
    assert found.reason in ("ImagePullBackOff", "ErrImagePull", "StartError")


def test_crashing_container_uses_its_last_termination() -> None:
    over = {"terminated": {"exitCode": 1, "reason": "StartError", "message": "exec format error"}}
    again = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}}
    found = refusal(container(again, over, "Running"))
    assert found is not None
    assert (found.reason, found.facts) == ("StartError", ("isa",))


@pytest.mark.parametrize(
    "status",
    [
        failed("Evicted", "The node was low on resource: memory"),
        failed("OutOfcpu", containerStatuses=[{"name": "main", "state": {"terminated": {"exitCode": 1}}}]),
        failed("DeadlineExceeded", "Pod was active on the node longer than the specified deadline"),
        container({"waiting": {"reason": "ImagePullBackOff", "message": "401 Unauthorized"}}),
        container({"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "x" not found'}}),
        container({"running": {}}, phase="Running"),
    ],
)
def test_node_independent_failure_is_not_held_against_the_node(status: FieldView) -> None:
    assert refusal(status) is None


def test_waiting_container_is_named_with_its_reason() -> None:
    stuck = waiting(container({"waiting": {"reason": "ImagePullBackOff", "message": "401 Unauthorized"}}))
    assert stuck is not None
    assert (stuck.container, stuck.reason, stuck.message) == ("main", "ImagePullBackOff", "401 Unauthorized")
    assert waiting(container({"waiting": {"reason": "ContainerCreating"}})) is None
    assert waiting(container({"running": {}})) is None


def test_contradiction_ends_when_its_fact_is_reported_differently() -> None:
    doubts = (FactConflict("isa", "2026-11-21T10:00:00Z", "default/p", "StartError"),)
    before = NodeReport("n1", uid="a", isa=IsaReport("rv64gcv"))
    assert (
        remaining_conflicts(doubts, before, NodeReport("n1", uid="a", isa=IsaReport("rv64gcv"), ready=False)) == doubts
    )
    assert remaining_conflicts(doubts, before, NodeReport("n1", uid="a", isa=IsaReport("rv64gc"))) == ()
    assert remaining_conflicts(doubts, before, NodeReport("n1", uid="b", isa=IsaReport("rv64gcv"))) == ()
