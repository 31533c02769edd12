"""Claims get their requested devices, all on one node, or the pod gets a reason."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from hetsched.adapters.files import parse_cluster, parse_workload
from hetsched.adapters.objects.export.cluster import write_cluster
from hetsched.contracts.api.cluster_report import ClusterObservation
from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.objects.allocation import DeviceGrant
from hetsched.contracts.objects.devices import BindingConditions, DeviceCapacity, DeviceId
from hetsched.contracts.objects.node_constraints import Expression, NodeTerm
from hetsched.contracts.objects.node_report import Taint
from hetsched.engine.cluster.devices import search
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import compile_policy
from hetsched.engine.framework.registry import load_registry
from hetsched.engine.look.report import report_of
from hetsched.engine.simulation.hypothetical_nodes import with_nodes
from hetsched.engine.simulation.what_if import what_if
from tests.builders import a_node

DRIVER = "gpu.example.com"
API = "resource.k8s.io/v1"
OWN = f'device.attributes["{DRIVER}"]'


def node(name: str, **labels: str) -> dict[str, Any]:
    status = {
        "allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}


def device(name: str, model: str = "a", root: int = 0, **more: Any) -> dict[str, Any]:
    return {"name": name, "attributes": {"model": {"string": model}, "root": {"int": root}}, **more}


def slice_of(place: str, *devices: dict[str, Any], generation: int = 1, count: int = 1, **more: Any) -> dict[str, Any]:
    pool = {"name": place, "generation": generation, "resourceSliceCount": count}
    spec = {"driver": DRIVER, "nodeName": place, "pool": pool, "devices": list(devices), **more}
    name = f"{place}-{generation}-{len(devices)}"
    return {"apiVersion": API, "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


def in_rack(rack: str) -> dict[str, Any]:
    term = {"matchExpressions": [{"key": "rack", "operator": "In", "values": [rack]}]}
    return {"nodeSelector": {"nodeSelectorTerms": [term]}}


def shared_slice(*devices: dict[str, Any], **nodes: Any) -> dict[str, Any]:
    """Return a slice for other nodes than one by its name."""
    found = slice_of("fabric", *devices, **nodes)
    del found["spec"]["nodeName"]
    return found


def counters(place: str, count: int = 2, **amounts: str) -> dict[str, Any]:
    """Return the slice with the counters of a pool, which has `count` slices."""
    found = slice_of(place, count=count)
    del found["spec"]["nodeName"], found["spec"]["devices"]
    sets = [{"name": "gpu", "counters": {name: {"value": value} for name, value in amounts.items()}}]
    found["spec"] |= {"allNodes": True, "sharedCounters": sets}
    return found


def again(found: dict[str, Any]) -> dict[str, Any]:
    """Return the object with another name."""
    return {**found, "metadata": {"name": f"{found['metadata']['name']}-again"}}


def part(name: str, root: int = 0, **amounts: str) -> dict[str, Any]:
    """Return a device that consumes counters."""
    consumed = [{"counterSet": "gpu", "counters": {counter: {"value": value} for counter, value in amounts.items()}}]
    return device(name, root=root, consumesCounters=consumed)


def kind(name: str = "gpu", expression: str = f'device.driver == "{DRIVER}"') -> dict[str, Any]:
    spec = {"selectors": [{"cel": {"expression": expression}}]}
    return {"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def wish(*selectors: str, **more: Any) -> dict[str, Any]:
    found = {"deviceClassName": "gpu", **more}
    return found | ({"selectors": [{"cel": {"expression": text}} for text in selectors]} if selectors else {})


def exactly(name: str, *selectors: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "exactly": wish(*selectors, **more)}


def claim(name: str, *requests: dict[str, Any], status: Any = None, **more: Any) -> dict[str, Any]:
    spec = {"devices": {"requests": list(requests), **more}}
    plain = {"apiVersion": API, "kind": "ResourceClaim", "metadata": {"name": name, "uid": f"u-{name}"}, "spec": spec}
    return plain | ({"status": status} if status else {})


def pod(*claims: str, name: str = "p") -> dict[str, Any]:
    uses = [{"name": claim, "resourceClaimName": claim} for claim in claims]
    spec = {"containers": [{"name": "main", "image": "x"}], "resourceClaims": uses}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


class Scene:
    """A cluster of these objects, and its pods in the given order."""

    def __init__(self, *objects: dict[str, Any]) -> None:
        content = parse_cluster([("cluster", yaml.safe_dump_all([kind(), *objects]).encode())])
        self.state = ClusterState.of(content)
        self.scheduler = Scheduler(self.state, compile_policy(BUILTIN["hetsched"], load_registry()))
        self.placed: dict[str, tuple[str | None, list[str]]] = {}
        self.grants: dict[str, tuple[DeviceGrant, ...]] = {}
        self.diagnosed: dict[str, tuple[Verdict, str]] = {}
        for one in content.pending:
            outcome = self.scheduler.schedule(one)
            devices = [f"{grant.request}={grant.device.name}" for grant in outcome.allocation.devices]
            self.placed[one.name] = outcome.node, devices
            self.grants[one.name] = outcome.allocation.devices
            if outcome.node is None:
                found = diagnose(self.scheduler, one)
                self.diagnosed[one.name] = found.verdict, found.reasons[0].code


def test_devices_are_known_in_a_what_if_with_more_nodes() -> None:
    objects = (kind(), node("n1"), slice_of("n1", device("d0")), claim("c", exactly("r")), pod("c"))
    content = parse_cluster([("cluster", yaml.safe_dump_all(objects).encode())])
    policy = compile_policy(BUILTIN["hetsched"], load_registry())
    more = (a_node("n2").build(),)
    found = what_if(with_nodes(ClusterState.of(content), more), policy, content.pending, evaluated_at="")
    assert [item.node for item in found.placements] == ["n1"]


def test_claims_are_allocated_on_the_nodes_of_their_devices() -> None:
    scene = Scene(
        node("n1"), node("n2"), slice_of("n2", device("d0"), device("d1", "b")),
        claim("c", exactly("gpu", f'{OWN}.model == "b"')), pod("c"),
    )  # fmt: skip
    assert scene.placed == {"p": ("n2", ["gpu=d1"])}


def test_no_device_is_allocated_twice() -> None:
    pods = [item for name in "abc" for item in (claim(name, exactly("gpu")), pod(name, name=name))]
    scene = Scene(node("n1"), slice_of("n1", device("d0"), device("d1")), *pods)
    assert scene.placed == {"a": ("n1", ["gpu=d0"]), "b": ("n1", ["gpu=d1"]), "c": (None, [])}
    assert scene.diagnosed["c"] == (Verdict.NOT_NOW, "DevicesNotAvailable")


def test_ended_pod_releases_its_devices() -> None:
    scene = Scene(node("n1"), slice_of("n1", device("d0")), claim("a", exactly("gpu")), pod("a"))
    assert len(scene.state.devices.usage().exclusive) == 1
    scene.state.forget("default/p")
    assert (scene.state.devices.usage().exclusive, scene.state.devices.reserved_for) == (set(), {})


def test_allocation_mode_all_gets_every_device_of_the_node() -> None:
    every = claim("all", exactly("gpu", allocationMode="All"))
    scene = Scene(node("n1"), slice_of("n1", device("d0"), device("d1")), every, pod("all"))
    assert scene.placed["p"] == ("n1", ["gpu=d0", "gpu=d1"])
    item = [claim("one", exactly("gpu")), pod("one", name="a")]
    scene = Scene(node("n1"), slice_of("n1", device("d0"), device("d1")), *item, every, pod("all"))
    assert scene.placed == {"a": ("n1", ["gpu=d0"]), "p": (None, [])}


def test_incomplete_pool_blocks_requests_for_all_devices_on_its_nodes() -> None:
    # The other slices of two pools are missing: one pool is local to n2, the other is for the nodes of rack a (n3).
    every = claim("all", exactly("gpu", allocationMode="All"))
    partial = [slice_of("n2", count=2), shared_slice(count=2, **in_rack("a"))]
    fleet = [node("n1"), node("n2"), node("n3", rack="a"), *partial]
    for name, placed in (("n1", "n1"), ("n2", None), ("n3", None)):
        own = slice_of(name, device("d0"), pool={"name": "own", "generation": 1, "resourceSliceCount": 1})
        assert Scene(*fleet, own, every, pod("all")).placed["p"][0] == placed
        assert Scene(*fleet, own, claim("one", exactly("gpu")), pod("one")).placed["p"][0] == name


def test_claim_without_requests_fits_nodes_without_devices() -> None:
    assert Scene(node("n1"), claim("c"), pod("c")).placed["p"] == ("n1", [])


def test_first_available_alternative_is_used() -> None:
    choice = {
        "name": "gpu",
        "firstAvailable": [{"name": "big", **wish(f'{OWN}.model == "b"')}, {"name": "two", **wish(count=2)}],
    }
    there = [node("n1"), slice_of("n1", device("d0"), device("d1"))]
    assert Scene(*there, claim("c", choice), pod("c")).placed["p"] == ("n1", ["gpu/two=d0", "gpu/two=d1"])


def test_devices_with_match_attributes_are_searched_together() -> None:
    # d0 comes first but has no second one on its root; d1 and d2 share root 2.
    there = [node("n1"), slice_of("n1", device("d0", root=1), device("d1", root=2), device("d2", root=2))]
    alike = {"constraints": [{"matchAttribute": f"{DRIVER}/root"}]}
    pair = claim("c", exactly("one"), exactly("other"), **alike)
    assert Scene(*there, pair, pod("c")).placed["p"] == ("n1", ["one=d1", "other=d2"])
    three = claim("c", exactly("gpu", count=3), **alike)
    assert Scene(*there, three, pod("c")).placed["p"] == (None, [])
    absent = claim("c", exactly("gpu"), constraints=[{"matchAttribute": f"{DRIVER}/nothing"}])
    assert Scene(*there, absent, pod("c")).placed["p"] == (None, [])


def test_constraint_may_name_one_alternative_of_a_request() -> None:
    there = node("n1"), slice_of("n1", device("d0", root=1), device("d1", root=2), device("d2", root=2))
    alternatives = [{"name": "one", **wish()}, {"name": "any", **wish()}]
    choice = {"name": "either", "firstAvailable": alternatives}
    for name, devices in (("either/one", ["first=d0", "either/any=d1"]), ("either/any", ["first=d0", "either/one=d1"])):
        alike = {"constraints": [{"matchAttribute": f"{DRIVER}/root", "requests": ["first", name]}]}
        assert Scene(*there, claim("c", exactly("first"), choice, **alike), pod("c")).placed["p"] == ("n1", devices)


def test_alternative_with_too_many_devices_for_one_claim_is_skipped() -> None:
    there = node("n1"), slice_of("n1", *(device(f"d{i:02}") for i in range(40)))
    alternatives = [{"name": "most", **wish(count=30)}, {"name": "one", **wish()}]
    choice = {"name": "r", "firstAvailable": alternatives}
    scene = Scene(*there, claim("c", exactly("a", count=3), choice), pod("c"))
    assert scene.placed["p"] == ("n1", ["a=d00", "a=d01", "a=d02", "r/one=d03"])


def test_scarce_devices_of_a_late_request_end_the_search() -> None:
    # With each combination of 1, 3, 2 and 3 devices before it, the last request lacks devices.
    devices = [device(f"d{i:02}", "b" if i < 2 else "a") for i in range(12)]
    early = [exactly(f"r{number}", count=count) for number, count in enumerate((1, 3, 2, 3))]
    late = exactly("late", f'{OWN}.model == "b"', count=2)
    scene = Scene(node("n1"), slice_of("n1", *devices), claim("c", *early, late), pod("c"))
    assert scene.placed["p"][0] == "n1"
    assert scene.placed["p"][1][-2:] == ["late=d00", "late=d01"]
    scene = Scene(node("n1"), slice_of("n1", *devices[1:]), claim("c", *early, late), pod("c"))
    assert scene.diagnosed["p"] == (Verdict.NOT_NOW, "DevicesNotAvailable")
    scene = Scene(node("n1"), slice_of("n1", *devices[:10]), claim("c", *early, late), pod("c"))
    assert scene.diagnosed["p"] == (Verdict.NOT_NOW, "DevicesNotAvailable")


def test_constraints_end_the_search_for_too_many_equal_devices() -> None:
    # 15 equal devices are requested of 13 and 12.
    devices = [device(f"d{i:02}", root=i % 2) for i in range(25)]
    alike = {"constraints": [{"matchAttribute": f"{DRIVER}/root"}]}
    requests = [exactly(f"r{i}", f"{OWN}.root >= 0", count=3) for i in range(5)]
    scene = Scene(node("n1"), slice_of("n1", *devices), claim("c", *requests, **alike), pod("c"))
    assert scene.diagnosed["p"] == (Verdict.NOT_NOW, "DevicesNotAvailable")


def test_checks_of_devices_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    # 20 devices with different roots are requested of 128 with 16 roots: all searches reach the 17th request.
    devices = [device(f"d{i:03}", root=i % 16) for i in range(128)]
    different = {"constraints": [{"distinctAttribute": f"{DRIVER}/root"}]}
    asked = claim("c", *(exactly(f"r{i:02}") for i in range(20)), **different)
    monkeypatch.setattr(search, "MOST_CHECKS", 20_000)
    scene = Scene(node("n1"), slice_of("n1", *devices), asked, pod("c"))
    assert scene.diagnosed["p"] == (Verdict.NOT_NOW, "DevicesUndecided")


def test_long_search_ends_with_a_reason() -> None:
    # The counter suffices for 14 of 15 devices: a search would try more than 25 over 3 times 22 over 3 … sets.
    devices = [part(f"d{i:02}", slots="1") for i in range(25)]
    requests = [exactly(f"r{i}", count=3) for i in range(5)]
    pool = counters("n1", slots="14")
    scene = Scene(node("n1"), slice_of("n1", *devices, count=2), pool, claim("c", *requests), pod("c"))
    assert scene.diagnosed["p"] == (Verdict.NOT_NOW, "DevicesUndecided")


@pytest.mark.parametrize(
    "blocked",
    [
        {"attributes": {"model": {"newType": 1}}},
        {"somethingNew": 1},
    ],
)
def test_device_with_unsupported_requirements_is_not_allocated(blocked: dict[str, Any]) -> None:
    scene = Scene(node("n1"), slice_of("n1", device("d0", **blocked)), claim("c", exactly("gpu")), pod("c"))
    assert scene.placed["p"] == (None, [])
    scene = Scene(
        node("n1"), slice_of("n1", device("d0", **blocked), device("d1")), claim("c", exactly("gpu")), pod("c")
    )
    assert scene.placed["p"] == ("n1", ["gpu=d1"])


def test_pools_with_binding_conditions_are_used_last() -> None:
    attached = device("d0", bindingConditions=["Attached"], bindingFailureConditions=["Broken"])
    local, fabric = slice_of("n1", device("d1")), shared_slice(attached, allNodes=True)
    scene = Scene(node("n1"), local, fabric, claim("c", exactly("gpu")), pod("c"))
    assert scene.placed["p"] == ("n1", ["gpu=d1"])
    both = claim("c", exactly("gpu", count=2))
    scene = Scene(node("n1"), local, fabric, both, pod("c"))
    assert scene.placed["p"] == ("n1", ["gpu=d1", "gpu=d0"])


@pytest.mark.parametrize(("binds", "nodes"), [(True, None), (False, ())])
def test_grant_contains_the_binding_conditions_of_its_device(binds: bool, nodes: tuple[()] | None) -> None:
    conditions = {"bindingConditions": ["Attached"], "bindingFailureConditions": ["Broken"]}
    fabric = shared_slice(device("d0", bindsToNode=binds, **conditions), allNodes=True)
    scene = Scene(node("n1"), fabric, claim("c", exactly("gpu")), pod("c"))
    (grant,) = scene.grants["p"]
    assert (grant.binding, grant.node_terms) == (BindingConditions(("Attached",), ("Broken",)), nodes)


def taint_rule(selector: dict[str, Any] | None, effect: str = "NoSchedule") -> dict[str, Any]:
    spec: dict[str, Any] = {"taint": {"key": "broken", "effect": effect}}
    if selector is not None:
        spec["deviceSelector"] = selector
    return {"apiVersion": API, "kind": "DeviceTaintRule", "metadata": {"name": "rule"}, "spec": spec}


@pytest.mark.parametrize(
    "selector",
    [
        {},
        {"driver": DRIVER},
        {"driver": DRIVER, "pool": "n1", "device": "d0"},
        {"device": "d0"},
    ],
)
@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_device_tainted_by_a_rule_is_not_allocated(selector: dict[str, Any], effect: str) -> None:
    scene = Scene(
        node("n1"), slice_of("n1", device("d0")), taint_rule(selector, effect), claim("c", exactly("gpu")), pod("c")
    )
    assert scene.diagnosed["p"] == (Verdict.NOT_NOW, "DevicesTainted")


def test_rule_of_a_workload_file_taints_devices_of_the_cluster() -> None:
    cluster = parse_cluster(
        [("cluster", yaml.safe_dump_all([kind(), node("n1"), slice_of("n1", device("d0"))]).encode())]
    )
    workload = [taint_rule({}), claim("c", exactly("gpu")), pod("c")]
    content = parse_workload([("workload", yaml.safe_dump_all(workload).encode())], known=cluster)
    assert [device.taints for device in content.devices.devices] == [(Taint("broken"),)]


@pytest.mark.parametrize(
    ("selector", "effect"),
    [
        pytest.param(None, "NoSchedule", id="without a selector"),
        pytest.param({"driver": "another.example.com"}, "NoSchedule", id="another driver"),
        pytest.param({"driver": DRIVER, "pool": "n2"}, "NoSchedule", id="another pool"),
        pytest.param({"pool": "n1", "device": "d1"}, "NoSchedule", id="another device"),
        pytest.param({}, "None", id="without effect"),
    ],
)
def test_other_devices_remain_allocatable(selector: dict[str, Any] | None, effect: str) -> None:
    scene = Scene(
        node("n1"), slice_of("n1", device("d0")), taint_rule(selector, effect), claim("c", exactly("gpu")), pod("c")
    )
    assert scene.placed["p"] == ("n1", ["gpu=d0"])


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        pytest.param({"operator": "Exists"}, True, id="all taints"),
        pytest.param({"key": "broken", "operator": "Exists"}, True, id="key"),
        pytest.param({"key": "broken", "value": "fan"}, True, id="value"),
        pytest.param({"key": "broken", "value": "fan", "effect": "NoExecute"}, True, id="effect"),
        pytest.param({"key": "broken", "value": "fan", "effect": "NoSchedule"}, False, id="another effect"),
        pytest.param({"key": "broken", "value": "disk"}, False, id="another value"),
        pytest.param({"key": "old", "operator": "Exists"}, False, id="another key"),
    ],
)
@pytest.mark.parametrize("mode", ["ExactCount", "All"])
def test_request_may_tolerate_taints(toleration: dict[str, Any], tolerated: bool, mode: str) -> None:
    broken = device("d0", taints=[{"key": "broken", "value": "fan", "effect": "NoExecute"}])
    asked = claim("c", exactly("gpu", tolerations=[toleration], allocationMode=mode))
    scene = Scene(node("n1"), slice_of("n1", broken), asked, pod("c"))
    assert scene.placed["p"] == (("n1", ["gpu=d0"]) if tolerated else (None, []))


def test_every_taint_of_a_device_must_be_tolerated() -> None:
    asked = claim("c", exactly("gpu", tolerations=[{"key": "old", "operator": "Exists"}]))
    old = device("d0", taints=[{"key": "old", "effect": "NoSchedule"}])
    assert Scene(node("n1"), slice_of("n1", old), asked, pod("c")).placed["p"] == ("n1", ["gpu=d0"])
    scene = Scene(node("n1"), slice_of("n1", old), taint_rule({"device": "d0"}), asked, pod("c"))
    assert scene.diagnosed["p"] == (Verdict.NOT_NOW, "DevicesTainted")


def test_effects_that_do_not_prevent_allocations_are_ignored() -> None:
    there = device("d0", taints=[{"key": "a", "effect": "None"}, {"key": "b", "effect": "Later"}])
    scene = Scene(node("n1"), slice_of("n1", there), claim("c", exactly("gpu")), pod("c"))
    assert scene.placed["p"] == ("n1", ["gpu=d0"])


@pytest.mark.parametrize(
    ("selector", "tainted"),
    [
        pytest.param({"deviceClassName": "gpu"}, True, id="class"),
        pytest.param({"deviceClassName": "other"}, False, id="absent class"),
        pytest.param({"selectors": [{"cel": {"expression": f'{OWN}.model == "a"'}}]}, True, id="selector"),
        pytest.param({"selectors": [{"cel": {"expression": f'{OWN}.model == "b"'}}]}, False, id="another model"),
        pytest.param({"selectors": [{"cel": {"expression": f"{OWN}.speed > 1"}}]}, False, id="absent attribute"),
        pytest.param({"selectors": [{"cel": {"expression": "(("}}]}, True, id="unsupported expression"),
        pytest.param({"driver": "x", "deviceClassName": "gpu"}, False, id="class of another driver"),
    ],
)
def test_rules_of_kubernetes_1_34_select_by_class_and_expression(selector: dict[str, Any], tainted: bool) -> None:
    rule = {**taint_rule(selector), "apiVersion": "resource.k8s.io/v1alpha3"}
    scene = Scene(node("n1"), slice_of("n1", device("d0")), rule, claim("c", exactly("gpu")), pod("c"))
    assert scene.placed["p"] == ((None, []) if tainted else ("n1", ["gpu=d0"]))


@pytest.mark.parametrize(
    "asked",
    [
        claim("c", exactly("gpu", somethingNew=True)),
        claim("c", exactly("gpu", count=33)),
        claim("c", exactly("gpu"), constraints=[{"somethingNew": f"{DRIVER}/root"}]),
    ],
)
def test_unsupported_claim_is_rejected_with_its_field(asked: dict[str, Any]) -> None:
    scene = Scene(node("n1"), slice_of("n1", device("d0")), asked, pod("c"))
    assert scene.diagnosed["p"] == (Verdict.MISCONFIGURED, "FeatureNotSupported")


@pytest.mark.parametrize(
    ("objects", "code"),
    [
        ([pod("c")], "ResourceClaimMissing"),
        ([claim("c", {"name": "x", "exactly": {"deviceClassName": "none"}}), pod("c")], "DeviceClassMissing"),
        ([claim("c", exactly("gpu", f"{OWN}.speed > 1")), pod("c")], "DeviceSelectorUnknown"),
        ([claim("c", exactly("gpu")), pod("c", name="o"), pod("c")], "ResourceClaimBusy"),
    ],
)
def test_unknown_objects_leave_the_pod_pending(objects: list[dict[str, Any]], code: str) -> None:
    scene = Scene(node("n1"), slice_of("n1", device("d0")), *objects)
    assert scene.diagnosed["p"] == (Verdict.NOT_NOW, code)


def test_selector_is_evaluated_only_after_the_previous_ones() -> None:
    other = {"name": "nic", "attributes": {"mtu": {"int": 9000}}}
    nics = slice_of("n1", other)
    nics["spec"] |= {"driver": "nic.example.com"}
    nics["metadata"]["name"] = "nics"
    asked = claim("c", exactly("gpu", f'{OWN}.model == "a"'))
    assert Scene(node("n1"), nics, slice_of("n1", device("d0")), asked, pod("c")).placed["p"] == ("n1", ["gpu=d0"])


def test_newest_complete_pool_generation_is_used() -> None:
    old, new = slice_of("n1", device("d0"), device("d1")), slice_of("n1", device("d9"), generation=2)
    assert Scene(node("n1"), old, new, claim("c", exactly("gpu")), pod("c")).placed["p"] == ("n1", ["gpu=d9"])
    half = slice_of("n1", device("d9"), generation=2, count=2)
    assert Scene(node("n1"), old, half, claim("c", exactly("gpu")), pod("c")).placed["p"] == (None, [])


def test_outdated_unreadable_slice_does_not_reject_the_file() -> None:
    unreadable = [{"name": "memory", "counters": {"bytes": {"value": "much"}}}]
    old, new = slice_of("n1", sharedCounters=unreadable), slice_of("n1", device("d9"), generation=2)
    assert Scene(node("n1"), old, new, claim("c", exactly("gpu")), pod("c")).placed["p"] == ("n1", ["gpu=d9"])


def test_devices_of_a_node_selector_are_allocated_on_its_nodes() -> None:
    nodes = node("n1"), node("n2", rack="r2"), node("n3", rack="r3")
    objects = *nodes, shared_slice(device("d0"), **in_rack("r3")), claim("c", exactly("gpu"))
    scene = Scene(*objects, pod("c"))
    assert scene.placed["p"] == ("n3", ["gpu=d0"])
    scene.state.forget("default/p")
    (found,) = parse_workload([("p", yaml.safe_dump(pod("c")).encode())]).pending
    (grant,) = scene.scheduler.schedule(found).allocation.devices
    assert grant.node_terms == (NodeTerm((Expression("rack", "In", ("r3",)),)),)


def test_device_of_a_node_selector_is_allocated_once_for_all_nodes() -> None:
    pods = [item for name in "abc" for item in (claim(name, exactly("gpu")), pod(name, name=name))]
    spread = shared_slice(device("d0"), device("d1"), **in_rack("r"))
    scene = Scene(node("n1", rack="r"), node("n2", rack="r"), spread, *pods)
    assert sorted(devices for _, devices in scene.placed.values()) == [[], ["gpu=d0"], ["gpu=d1"]]


def test_each_device_may_have_its_own_nodes() -> None:
    there = shared_slice(
        device("d0", nodeName="n1"), device("d1", **in_rack("r2")), device("d2", allNodes=True), device("d3"),
        perDeviceNodeSelection=True,
    )  # fmt: skip
    every = claim("c", exactly("gpu", allocationMode="All"))
    devices = {}
    for name in ("n1", "n2", "n3"):
        on_node = pod("c")
        on_node["spec"]["nodeSelector"] = {"own": name}
        nodes = node("n1", own="n1"), node("n2", own="n2", rack="r2"), node("n3", own="n3")
        devices[name] = Scene(*nodes, there, every, on_node).placed["p"][1]
    assert devices == {"n1": ["gpu=d0", "gpu=d2"], "n2": ["gpu=d1", "gpu=d2"], "n3": ["gpu=d2"]}


def test_pod_of_an_allocated_claim_fits_the_nodes_of_its_selector() -> None:
    results = [{"request": "gpu", "driver": DRIVER, "pool": "fabric", "device": "d0"}]
    status = {"allocation": {"devices": {"results": results}, **in_rack("r2")}}
    nodes = node("n1"), node("n2", rack="r2"), node("n3", rack="r3")
    scene = Scene(*nodes, claim("had", exactly("gpu"), status=status), pod("had"))
    assert scene.placed["p"] == ("n2", [])
    scene = Scene(nodes[0], nodes[2], claim("had", exactly("gpu"), status=status), pod("had"))
    assert scene.diagnosed["p"][1] == "DevicesElsewhere"


def test_devices_share_the_counters_of_their_pool() -> None:
    there = slice_of("n1", part("whole", memory="40Gi"), part("half", memory="20Gi"), part("last", memory="20480Mi"),
                     count=2)  # fmt: skip
    halves = [item for name in "abc" for item in (claim(name, exactly("gpu", count=1)), pod(name, name=name))]
    scene = Scene(node("n1"), counters("n1", memory="40Gi", slots="7"), there, *halves)
    assert scene.placed == {"a": ("n1", ["gpu=half"]), "b": ("n1", ["gpu=last"]), "c": (None, [])}
    assert scene.diagnosed["c"] == (Verdict.NOT_NOW, "DevicesNotAvailable")
    assert list(scene.state.devices.usage().excesses()) == []


def test_search_returns_to_devices_with_fewer_counters() -> None:
    there = slice_of("n1", part("a", memory="30"), part("b", memory="15"), part("c", memory="25"), count=2)
    scene = Scene(node("n1"), counters("n1", memory="40"), there, claim("c", exactly("gpu", count=2)), pod("c"))
    assert scene.placed["p"] == ("n1", ["gpu=b", "gpu=c"])
    every = claim("c", exactly("gpu", allocationMode="All"))
    assert Scene(node("n1"), counters("n1", memory="69"), there, every, pod("c")).placed["p"] == (None, [])
    assert len(Scene(node("n1"), counters("n1", memory="70"), there, every, pod("c")).placed["p"][1]) == 3


def test_allocated_device_of_another_node_consumes_counters_of_the_pool() -> None:
    first, second = (slice_of("fabric", part(name, memory="30"), nodeName=name, count=3) for name in ("n1", "n2"))
    second["metadata"]["name"] = "second"
    results = [{"request": "gpu", "driver": DRIVER, "pool": "fabric", "device": "n1"}]
    had = claim("had", exactly("gpu"), status={"allocation": {"devices": {"results": results}}})
    objects = node("n1"), node("n2"), first, second, claim("c", exactly("gpu")), pod("c")
    assert Scene(*objects, had, counters("fabric", 3, memory="50")).placed["p"] == (None, [])
    assert Scene(*objects, had, counters("fabric", 3, memory="60")).placed["p"] == ("n2", ["gpu=n2"])


@pytest.mark.parametrize(
    "pool",
    [
        pytest.param([counters("n1", memory="9"), slice_of("n1", part("a", slots="1"), count=2)], id="absent counter"),
        pytest.param([slice_of("n1", device("a"), device("a"))], id="two devices of one name"),
        pytest.param(
            [counters("n1", 3, memory="9"), slice_of("n1", device("a"), count=3), again(counters("n1", 3, memory="8"))],
            id="two counters of one name",
        ),
    ],
)
def test_contradictory_pool_is_not_used(pool: list[dict[str, Any]]) -> None:
    scene = Scene(node("n1"), *pool, claim("c", exactly("gpu")), pod("c"))
    assert scene.placed["p"] == (None, [])


def share(name: str, value: str = "40", **policy: Any) -> dict[str, Any]:
    """Return a device that allows several allocations, with a request policy for its memory."""
    memory = {"value": value} | ({"requestPolicy": policy} if policy else {})
    return device(name, allowMultipleAllocations=True, capacity={"memory": memory})


def memory(amount: str) -> dict[str, Any]:
    return {"capacity": {"requests": {"memory": amount}}}


def test_shares_of_a_device_consume_its_capacity() -> None:
    pods = [item for name in "abc" for item in (claim(name, exactly("gpu", **memory("15"))), pod(name, name=name))]
    scene = Scene(node("n1"), slice_of("n1", share("d0")), *pods)
    assert scene.placed == {"a": ("n1", ["gpu=d0"]), "b": ("n1", ["gpu=d0"]), "c": (None, [])}
    assert scene.state.devices.usage().shares == {DeviceId(DRIVER, "n1", "d0"): {"memory": 30_000}}
    assert list(scene.state.devices.usage().excesses()) == []
    scene.state.forget("default/a")
    assert scene.state.devices.usage().shares == {DeviceId(DRIVER, "n1", "d0"): {"memory": 15_000}}


def test_requests_of_one_claim_may_share_a_device() -> None:
    asked = claim("c", exactly("a", **memory("20")), exactly("b", **memory("20")), exactly("c", **memory("1")))
    scene = Scene(node("n1"), slice_of("n1", share("d0"), share("d1")), asked, pod("c"))
    assert scene.placed["p"] == ("n1", ["a=d0", "b=d0", "c=d1"])
    two = claim("c", exactly("a", count=2, **memory("1")))
    assert Scene(node("n1"), slice_of("n1", share("d0")), two, pod("c")).placed["p"] == (None, [])


@pytest.mark.parametrize(
    ("policy", "requested", "consumed"),
    [
        pytest.param({}, None, 40_000, id="whole device without a policy"),
        pytest.param({}, "1500m", 1500, id="requested amount"),
        pytest.param({"default": "4", "validValues": ["2", "4", "8"]}, None, 4000, id="default"),
        pytest.param({"default": "4", "validValues": ["2", "4", "8"]}, "3", 4000, id="next value"),
        pytest.param({"default": "4", "validValues": ["2", "4", "8"]}, "9", None, id="more than the last value"),
        pytest.param({"default": "4", "validRange": {"min": "2"}}, "1", 2000, id="minimum"),
        pytest.param({"default": "4", "validRange": {"min": "2"}}, "2500m", 2500, id="no step"),
        pytest.param({"default": "4", "validRange": {"min": "2", "step": "3"}}, "5500m", 8000, id="step"),
        pytest.param({"default": "4", "validRange": {"min": "2", "max": "8"}}, "9", None, id="maximum"),
        pytest.param({"default": "4", "validRange": {"min": "2", "max": "9", "step": "3"}}, "9", None, id="last step"),
        pytest.param({}, "41", None, id="more than the device has"),
    ],
)
def test_consumed_capacity_follows_the_request_policy(
    policy: dict[str, Any], requested: str | None, consumed: int | None
) -> None:
    asked = claim("c", exactly("gpu", **(memory(requested) if requested else {})))
    scene = Scene(node("n1"), slice_of("n1", share("d0", **policy)), asked, pod("c"))
    shares = scene.state.devices.usage().shares
    assert shares == ({} if consumed is None else {DeviceId(DRIVER, "n1", "d0"): {"memory": consumed}})


def test_requested_capacity_is_a_condition_for_devices_without_shares() -> None:
    small, large = device("d0", capacity={"memory": {"value": "4"}}), device("d1", capacity={"memory": {"value": "8"}})
    there = node("n1"), slice_of("n1", small, large, device("d2"))
    scene = Scene(*there, claim("c", exactly("gpu", **memory("5"))), pod("c"))
    assert scene.placed["p"] == ("n1", ["gpu=d1"])
    every = claim("c", exactly("gpu", allocationMode="All", **memory("4")))
    assert Scene(*there, every, pod("c")).placed["p"] == ("n1", ["gpu=d0", "gpu=d1"])


def allocated(*results: dict[str, Any]) -> dict[str, Any]:
    """Return the status of a claim with these results for devices of n1."""
    found = [{"request": "gpu", "driver": DRIVER, "pool": "n1", **result} for result in results]
    return {"allocation": {"devices": {"results": found}}}


def test_recorded_shares_and_exclusive_allocations_limit_new_shares() -> None:
    part_of = {"device": "d0", "shareID": "5b1d", "consumedCapacity": {"memory": "30"}}
    objects = node("n1"), slice_of("n1", share("d0")), claim("c", exactly("gpu", **memory("11"))), pod("c")
    used = claim("had", exactly("gpu"), status=allocated(part_of))
    assert Scene(*objects, used).placed["p"] == (None, [])
    assert Scene(*objects, claim("had", exactly("gpu"), status=allocated({"device": "d0"}))).placed["p"] == (None, [])
    less = claim("had", exactly("gpu"), status=allocated({**part_of, "consumedCapacity": {"memory": "29"}}))
    assert Scene(*objects, less).placed["p"] == ("n1", ["gpu=d0"])


def test_all_shares_of_a_device_consume_its_counters_once() -> None:
    shared = {**part("d0", slots="1"), "allowMultipleAllocations": True, "capacity": {"memory": {"value": "40"}}}
    there = counters("n1", slots="1"), slice_of("n1", shared, part("d1", slots="1"), count=2)
    pods = [item for name in "abc" for item in (claim(name, exactly("gpu", **memory("20"))), pod(name, name=name))]
    scene = Scene(node("n1"), *there, *pods)
    assert scene.placed == {"a": ("n1", ["gpu=d0"]), "b": ("n1", ["gpu=d0"]), "c": (None, [])}
    both = claim("c", exactly("x", **memory("20")), exactly("y", **memory("20")))
    assert Scene(node("n1"), *there, both, pod("c")).placed["p"] == ("n1", ["x=d0", "y=d0"])


def test_admin_access_shares_devices_in_use() -> None:
    used = claim("had", exactly("gpu"), status=allocated({"device": "d0"}))
    watch = claim("w", exactly("all", allocationMode="All", adminAccess=True))
    there = node("n1"), slice_of("n1", device("d0"), device("d1"))
    scene = Scene(*there, used, watch, pod("w"), claim("x", exactly("gpu")), pod("x", name="x"))
    assert scene.placed == {"p": ("n1", ["all=d0", "all=d1"]), "x": ("n1", ["gpu=d1"])}
    twice = claim("c", exactly("a", adminAccess=True), exactly("b", adminAccess=True))
    assert Scene(*there, used, twice, pod("c")).placed["p"] == ("n1", ["a=d0", "b=d1"])
    others = claim("had", exactly("gpu"), status=allocated({"device": "d0", "adminAccess": True}))
    assert Scene(*there, others, claim("x", exactly("gpu")), pod("x")).placed["p"] == ("n1", ["gpu=d0"])


def test_devices_with_distinct_attributes_are_searched_together() -> None:
    there = [node("n1"), slice_of("n1", device("d0", root=1), device("d1", root=1), device("d2", root=2))]
    distinct = {"constraints": [{"distinctAttribute": f"{DRIVER}/root"}]}
    assert Scene(*there, claim("c", exactly("a"), exactly("b"), **distinct), pod("c")).placed["p"][1] == [
        "a=d0",
        "b=d2",
    ]
    assert Scene(*there, claim("c", exactly("a", count=3), **distinct), pod("c")).placed["p"] == (None, [])
    absent = {"constraints": [{"distinctAttribute": f"{DRIVER}/nothing"}]}
    assert Scene(*there, claim("c", exactly("a"), **absent), pod("c")).placed["p"] == (None, [])


def test_allocated_claim_binds_its_pod_and_keeps_its_devices() -> None:
    results = [{"request": "gpu", "driver": DRIVER, "pool": "n2", "device": "d0"}]
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}
    status = {"allocation": {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [term]}}}
    scene = Scene(
        node("n1"), node("n2"), slice_of("n2", device("d0")), claim("had", exactly("gpu"), status=status),
        claim("c", exactly("gpu")), pod("had", name="first"), pod("c"),
    )  # fmt: skip
    assert scene.placed == {"first": ("n2", []), "p": (None, [])}


def test_export_round_trip() -> None:
    facts = {"driver": {"version": "1.10.0"}, "model": {"string": "a"}, "root": {"int": 1}, "ok": {"bool": True}}
    rich = {"name": "d0", "attributes": facts, "capacity": {"memory": {"value": "40Gi"}}}
    rich["allowMultipleAllocations"] = True
    policy = {"default": "2", "validRange": {"min": "1", "max": "9", "step": "500m"}}
    rich["capacity"] |= {"slots": {"value": "9", "requestPolicy": policy}}
    rich["capacity"] |= {"lanes": {"value": "9", "requestPolicy": {"validValues": ["1", "9"]}}}
    rich["taints"] = [{"key": "broken", "value": "fan", "effect": "NoExecute"}]
    tolerant = wish(tolerations=[{"key": "broken", "operator": "Exists"}])
    either = {"name": "x", "firstAvailable": [{"name": "a", **wish(count=2)}, {"name": "b", **tolerant}]}
    status = {
        "allocation": {"devices": {"results": [{"request": "gpu", "driver": DRIVER, "pool": "n1", "device": "d1"}]}},
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
    }
    status["allocation"] |= in_rack("r")
    part_of = {"device": "d0", "shareID": "5b1d", "consumedCapacity": {"memory": "30"}}
    shares = allocated(part_of, {"device": "d1", "adminAccess": True})
    whole = slice_of("n1", rich, device("d1"), device("d2", somethingNew=1), part("d3", memory="1Gi"), count=2)
    incomplete = slice_of("n2", device("d9"), count=2)
    spread = shared_slice(device("d5", **in_rack("r")), device("d6", allNodes=True), perDeviceNodeSelection=True)
    claims = [
        claim("a", either, constraints=[{"matchAttribute": f"{DRIVER}/root", "requests": ["x"]}]),
        claim("s", exactly("gpu", **memory("2")), constraints=[{"distinctAttribute": f"{DRIVER}/root"}], status=shares),
        claim("b", exactly("gpu", f'{OWN}.driver.isLessThan(semver("2.0.0"))'), status=status),
        claim("c", exactly("gpu", somethingNew=True)),
        claim("d", exactly("gpu", f'device.capacity["{DRIVER}"].memory.isGreaterThan(quantity("1Gi"))')),
    ]
    objects = [
        kind(),
        node("n1"),
        whole,
        counters("n1", memory="2Gi", slots="7"),
        incomplete,
        spread,
        *claims,
        pod("a"),
    ]
    found = parse_cluster([("cluster", yaml.safe_dump_all(objects).encode())])
    copy = parse_cluster([("again", write_cluster(found))])
    assert copy.devices == found.devices
    assert found.devices.devices[0].capacity == {
        "memory": DeviceCapacity(40 * 2**30 * 1000),
        "slots": DeviceCapacity(9000, default=2000, least=1000, most=9000, step=500),
        "lanes": DeviceCapacity(9000, values=(1000, 9000)),
    }
    assert [one.shape.devices for one in copy.pending] == [one.shape.devices for one in found.pending]


def test_device_that_is_not_ready_is_reported() -> None:
    results = [{"request": "r", "driver": DRIVER, "pool": "n1", "device": name} for name in ("d0", "d1")]
    states = [
        {"driver": DRIVER, "pool": "n1", "device": name, "conditions": [{"type": "Ready", "status": ready, **more}]}
        for name, ready, more in (
            ("d0", "False", {"reason": "LinkDown", "message": "link down since 12:01"}),
            ("d1", "True", {}),
        )
    ]
    status = {"allocation": {"devices": {"results": results}}, "devices": states}
    objects = kind(), node("n1"), slice_of("n1", device("d0"), device("d1")), claim("c", exactly("r"), status=status)
    content = parse_cluster([("cluster", yaml.safe_dump_all(objects).encode())])
    allocated = content.devices.claims["default/c"].allocated
    assert allocated is not None
    assert [one.not_ready for one in allocated] == ["LinkDown", ""]
    assert parse_cluster([("again", write_cluster(content))]).devices == content.devices
    policies = (compile_policy(BUILTIN[name], load_registry()) for name in ("hetsched", "default-kube"))
    report = report_of(ClusterObservation(content), *policies, evaluated_at="2026-11-28T00:00:00Z")
    (found,) = [one for one in report.findings if one.code == "DeviceNotReady"]
    assert (found.kind, found.name) == ("ResourceClaim", "default/c")
    assert [str(text) for text in found.evidence] == [f"Device {DRIVER}/n1/d0: LinkDown"]
