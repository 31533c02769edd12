"""The resource-fit plugin: requests of every resource against the free amounts."""

import pytest

from hetsched.engine.framework.registry import load_registry
from tests.builders import a_node, a_pod
from tests.unit.engine.fleet import ask, policy_of, scheduler

NVIDIA = "nvidia.com/gpu"


@pytest.mark.parametrize(("asked", "fits"), [("1", True), ("2", True), ("2001m", False)])
def test_free_capacity_may_be_used_up_but_not_exceeded(asked: str, fits: bool) -> None:
    # 8 CPUs - 6 booked = 2 left
    answer = ask("resource-fit", a_pod().cpu(asked), [a_node("n").cpu("8")], [a_pod("r").cpu("6").running_on("n")])
    assert answer.fits == {"n": fits}


def test_every_short_resource_is_named_with_the_amount_asked() -> None:
    answer = ask("resource-fit", a_pod().cpu("9").memory("40Gi"), [a_node("n").cpu("8").memory("32Gi")])
    assert [(r.code, r.missing, r.message) for r in answer.reasons["n"]] == [
        ("InsufficientResource", ("cpu",), "Insufficient cpu: 9 requested"),
        ("InsufficientResource", ("memory",), "Insufficient memory: 40Gi requested"),
    ]


def test_pod_count_is_limited() -> None:
    running = [a_pod("r").best_effort().running_on("n")]
    assert ask("resource-fit", a_pod().best_effort(), [a_node("n").pods(1)], running).codes("n") == [
        "InsufficientResource"
    ]


def test_node_without_a_pod_capacity_has_no_pod_limit() -> None:
    silent = a_node("n").having(allocatable={"cpu": 8000, "memory": 2**35})
    running = [a_pod(f"r{i}").best_effort().running_on("n") for i in range(200)]
    assert ask("resource-fit", a_pod().best_effort(), [silent], running).feasible == ["n"]


def test_missing_extended_resource_is_infeasible() -> None:
    answer = ask("resource-fit", a_pod().requesting("example.com/fpga", 1), [a_node("n")])
    assert answer.reasons["n"][0].missing == ("example.com/fpga",)


def test_pod_without_requests_fits_a_full_node() -> None:
    nothing = a_pod().shaped().best_effort()
    nothing.requesting("pods", 0)
    assert ask("resource-fit", nothing, [a_node("n").cpu(0)]).skipped


def test_gpu_resources_are_left_to_gpu_fit() -> None:
    asking, fleet = a_pod().requesting(NVIDIA, 2).build(), [a_node("n")]
    assert scheduler(fleet, policy=policy_of("resource-fit")).schedule(asking).node is None
    assert scheduler(fleet, policy=policy_of("resource-fit", "gpu-fit")).schedule(asking).node == "n"
    assert "gpu-fit" in load_registry()


def test_pods_fill_a_node_exactly() -> None:
    # 8 CPUs / 3 CPUs = 2 pods
    deciding = scheduler([a_node("n").cpu("8")])
    placed = [deciding.schedule(a_pod(f"p{i}").cpu("3").build()).node for i in range(3)]
    assert placed == ["n", "n", None]
