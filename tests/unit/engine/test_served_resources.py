"""Devices of a class serve extended resources on the nodes without a device plugin for the resource."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import yaml

from hetsched.adapters.files import parse_cluster
from hetsched.adapters.objects.allocation import parse_allocation, write_allocation
from hetsched.adapters.objects.export.cluster import write_cluster
from hetsched.contracts.objects import wishes
from hetsched.contracts.objects.allocation import Allocation, ClaimedDevices, DeviceGrant, DeviceMapping, ExtendedClaim
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.devices import AllocatedDevice, Device, DeviceId, Devices, ResourceClaim
from hetsched.contracts.waits import describe_waits
from hetsched.engine.cluster.devices.extended_resources import extended_claim
from hetsched.engine.cluster.devices.usage import DeviceUsage
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.engine.framework.cycle import Outcome, Scheduler
from hetsched.engine.framework.policy import compile_policy
from hetsched.engine.framework.registry import load_registry
from hetsched.engine.gangs.capacity import missing_resources, node_slots
from hetsched.engine.simulation.headroom import Headroom, TrialBudget, alone
from tests.builders import a_node, a_pod
from tests.unit.engine.fleet import built
from tests.unit.engine.test_devices import DRIVER, claim, device, exactly, kind, node, slice_of

GPU, NIC = "example.com/gpu", "example.com/nic"
IMPLICIT = "deviceclass.resource.kubernetes.io/gpu"


def serving(name: str, resource: str, created: str = "2026-01-01T00:00:00Z", **more: str) -> dict[str, Any]:
    """Return a class whose devices serve an extended resource."""
    found = kind(name, **more)
    found["spec"]["extendedResourceName"] = resource
    found["metadata"]["creationTimestamp"] = created
    return found


def plugin_node(name: str, **amounts: str) -> dict[str, Any]:
    found = node(name)
    found["status"]["allocatable"] |= amounts
    return found


def container(name: str = "main", **more: Any) -> dict[str, Any]:
    """Return a container; `resources` are its limits, and `sidecar` is for init containers."""
    limits = {"cpu": "1", **more.get("resources", {})}
    found = {"name": name, "image": "x", "resources": {"limits": limits, "requests": dict(limits)}}
    return found | ({"restartPolicy": "Always"} if more.get("sidecar") else {})


def pod(name: str, *containers: dict[str, Any], init: tuple[dict[str, Any], ...] = (), claims: Any = ()) -> Any:
    uses = [{"name": each, "resourceClaimName": each} for each in claims]
    spec = {"containers": list(containers), "initContainers": list(init), "resourceClaims": uses}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "uid": f"u-{name}"}, "spec": spec}


def asking(name: str, count: int = 1, resource: str = GPU) -> Any:
    return pod(name, container(resources={resource: str(count)}))


def naming(claim_name: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Return a pod whose status names a claim for its extended resources."""
    return asked | {"status": {"extendedResourceClaimStatus": {"resourceClaimName": claim_name}}}


def read(*objects: dict[str, Any]) -> ClusterContent:
    return parse_cluster([("cluster", yaml.safe_dump_all(objects).encode())])


class Scene:
    """A cluster of these objects and its pods, which are placed in the given order."""

    def __init__(self, *objects: dict[str, Any], policy: str = "hetsched") -> None:
        self.content = read(*objects)
        self.scheduler = Scheduler(ClusterState.of(self.content), compile_policy(BUILTIN[policy], load_registry()))
        self.outcomes: dict[str, Outcome] = {one.name: self.scheduler.schedule(one) for one in self.content.pending}

    def devices(self, name: str) -> list[str]:
        return [f"{grant.request}={grant.device.name}" for grant in self.outcomes[name].allocation.devices]

    def reasons(self, name: str) -> list[tuple[str, str]]:
        (one,) = [each for each in self.content.pending if each.name == name]
        return [(reason.code, str(reason.message)) for reason in diagnose(self.scheduler, one).reasons]


def test_devices_serve_nodes_without_a_plugin_until_none_is_free() -> None:
    scene = Scene(
        serving("gpu", GPU), node("a"), slice_of("a", device("d0"), device("d1")), asking("one"), asking("two"),
        asking("three"),
    )  # fmt: skip
    assert (scene.devices("one"), scene.devices("two")) == (
        ["container-0-request-1=d0"],
        ["container-0-request-1=d1"],
    )
    assert scene.outcomes["three"].node is None
    assert scene.reasons("three") == [("DevicesNotAvailable", "no free devices for example.com/gpu")]


def test_claim_names_the_container_and_its_request() -> None:
    scene = Scene(serving("gpu", GPU), node("a"), slice_of("a", device("d0"), device("d1")), asking("one", 2))
    found = scene.outcomes["one"].allocation
    claim = found.extended
    assert claim
    assert claim.requests == (ClaimedDevices("container-0-request-1", "gpu", 2),)
    assert claim.mappings == (DeviceMapping("main", GPU, "container-0-request-1"),)
    assert {grant.claim for grant in found.devices} == {claim.name}
    assert claim.name.startswith("one-extended-resources-")
    assert parse_allocation(write_allocation(found)).extended == claim


def test_plugin_of_a_node_takes_precedence_over_its_devices() -> None:
    objects = serving("gpu", GPU), plugin_node("a", **{GPU: "1"}), slice_of("a", device("d0"))
    scene = Scene(*objects, asking("one"), asking("two"))
    assert (scene.outcomes["one"].node, scene.devices("one")) == ("a", [])
    assert scene.outcomes["one"].allocation.extended is msgspec.UNSET
    assert scene.reasons("two") == [("InsufficientResource", "Insufficient example.com/gpu: 1 requested")]
    # A plugin without healthy devices reports an amount of zero.
    assert Scene(*objects[::2], plugin_node("a", **{GPU: "0"}), asking("one")).devices("one")


def test_resource_without_a_class_is_insufficient() -> None:
    scene = Scene(kind(), node("a"), slice_of("a", device("d0")), asking("one"))
    assert scene.reasons("one") == [("InsufficientResource", "Insufficient example.com/gpu: 1 requested")]


def test_every_class_serves_the_resource_of_its_name() -> None:
    scene = Scene(kind(), node("a"), slice_of("a", device("d0")), asking("one", resource=IMPLICIT))
    assert scene.devices("one") == ["container-0-request-1=d0"]


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        ((("old", "2026-01-01T00:00:00Z"), ("new", "2026-01-02T00:00:00Z")), "new"),
        ((("new", "2026-01-02T00:00:00Z"), ("old", "2026-01-01T00:00:00Z")), "new"),
        ((("b", "2026-01-01T00:00:00Z"), ("a", "2026-01-01T00:00:00Z")), "a"),
    ],
)
def test_newest_class_serves_a_resource(classes: tuple[tuple[str, str], ...], expected: str) -> None:
    found = read(*(serving(name, GPU, created) for name, created in classes))
    assert found.devices.class_of(GPU) == expected


def test_claims_and_extended_resources_do_not_share_a_device() -> None:
    objects = serving("gpu", GPU), node("a"), claim("c", exactly("r"))
    both = pod("both", container(resources={GPU: "1"}), claims=["c"])
    scene = Scene(*objects, slice_of("a", device("d0"), device("d1")), both)
    assert scene.devices("both") == ["r=d0", "container-0-request-1=d1"]
    scene = Scene(*objects, slice_of("a", device("d0")), both)
    assert scene.reasons("both") == [("DevicesNotAvailable", "no free devices for c, example.com/gpu")]


def test_taints_of_devices_are_not_tolerated() -> None:
    tainted = device("d0", taints=[{"key": "broken", "effect": "NoSchedule"}])
    scene = Scene(serving("gpu", GPU), node("a"), slice_of("a", tainted), asking("one"))
    expected = "the devices for example.com/gpu have taints that are not tolerated"
    assert scene.reasons("one") == [("DevicesTainted", expected)]


def test_containers_share_devices_as_they_start() -> None:
    init = (
        container("early", resources={GPU: "3"}),
        container("side", sidecar=True, resources={GPU: "1"}),
        container("late", resources={GPU: "4"}),
    )
    content = read(pod("p", container("main", resources={GPU: "2", NIC: "1"}), container("idle"), init=init))
    found = extended_claim(content.pending[0], {GPU: "gpu", NIC: "nic"})
    assert found is not None
    # `early` reuses the devices of `side` and `main`; `late` only those of `main`, and needs two more.
    assert [(each.name, each.device_class, each.count) for each in found.requests] == [
        ("container-1-request-1", "gpu", 1),
        ("container-2-request-1", "gpu", 2),
        ("container-3-request-1", "gpu", 2),
        ("container-3-request-2", "nic", 1),
    ]
    assert [(each.container, each.resource, each.request) for each in found.mappings] == [
        ("side", GPU, "container-1-request-1"),
        ("main", GPU, "container-3-request-1"),
        ("early", GPU, "container-1-request-1"),
        ("early", GPU, "container-3-request-1"),
        ("late", GPU, "container-3-request-1"),
        ("late", GPU, "container-2-request-1"),
        ("main", NIC, "container-3-request-2"),
    ]


def test_short_lived_containers_share_the_largest_additional_request() -> None:
    init = container("i0", resources={GPU: "2"}), container("i1", resources={GPU: "3"})
    content = read(pod("p", container("main", resources={GPU: "1"}), init=init))
    found = extended_claim(content.pending[0], {GPU: "gpu"})
    assert found is not None
    assert [(each.name, each.count) for each in found.requests] == [
        ("container-1-request-1", 2),
        ("container-2-request-1", 1),
    ]
    assert [(each.container, each.request) for each in found.mappings] == [
        ("main", "container-2-request-1"),
        ("i0", "container-2-request-1"),
        ("i0", "container-1-request-1"),
        ("i1", "container-2-request-1"),
        ("i1", "container-1-request-1"),
    ]


def test_claim_left_by_an_earlier_binding_does_not_block_its_pod() -> None:
    objects = serving("gpu", GPU), node("a"), slice_of("a", device("d0")), asking("one")
    name = next(iter(Scene(*objects).outcomes["one"].allocation.devices)).claim
    results = [{"request": "container-0-request-1", "driver": DRIVER, "pool": "a", "device": "d0"}]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": [{"uid": "u-one"}]}
    left = claim(name, exactly("container-0-request-1"), status=status)
    scene = Scene(*objects, left, asking("two"))
    assert scene.devices("one") == ["container-0-request-1=d0"]
    assert scene.outcomes["two"].node is None


def test_pod_that_names_a_claim_fits_no_node_with_a_plugin() -> None:
    """An earlier binding named the claim, which may have any name and may have been deleted since then."""
    both = pod("one", container(resources={GPU: "1", NIC: "1"}))
    classes = serving("gpu", GPU), serving("nic", NIC)
    plugins = plugin_node("a", **{GPU: "1", NIC: "1"})
    assert Scene(*classes, plugins, both).outcomes["one"].node == "a"
    scene = Scene(*classes, plugins, naming("one-extended-resources-x7z", both))
    assert scene.outcomes["one"].node is None
    ((code, message),) = scene.reasons("one")
    assert (code, "names claim one-extended-resources-x7z for" in message) == ("ExtendedClaimNamed", True)
    # On node b, a plugin serves one of the resources, and devices serve the other one.
    partly = plugin_node("b", **{NIC: "1"})
    scene = Scene(*classes, plugins, partly, slice_of("b", device("d0")), naming("any", both))
    assert (scene.outcomes["one"].node, scene.devices("one")) == ("b", ["container-0-request-1=d0"])


def test_pod_that_names_a_claim_fits_no_node_without_device_classes() -> None:
    scene = Scene(plugin_node("a", **{GPU: "1"}), naming("left", asking("one")), asking("two"))
    assert scene.outcomes["two"].node == "a"
    found = diagnose(scene.scheduler, scene.content.pending[0])
    assert [reason.code for reason in found.reasons] == ["ExtendedClaimNamed"]
    expected = "free devices for claim left and a node with cpu 1, example.com/gpu 1 free"
    assert describe_waits(found.waits_for) == expected


def test_claim_that_the_pod_does_not_name_excludes_no_node_with_a_plugin() -> None:
    """An earlier binding created the claim, failed before it named the claim, and could not delete the claim."""
    name = extended_claim(read(asking("one")).pending[0], {GPU: "gpu"})
    assert name is not None
    left = claim(name.name, exactly("container-0-request-0"))
    scene = Scene(serving("gpu", GPU), plugin_node("a", **{GPU: "1"}), left, asking("one"))
    assert scene.outcomes["one"].node == "a"


@pytest.mark.parametrize("resource", [GPU, "nvidia.com/gpu"])
@pytest.mark.parametrize(("count", "fitting"), [(2, 2), (3, 0)])
def test_devices_are_the_capacity_of_a_gang(resource: str, count: int, fitting: int) -> None:
    members = [asking(f"g-{number}", 1, resource) for number in range(count)]
    for member in members:
        member["metadata"]["labels"] = {wishes.GANG_NAME: "g", wishes.GANG_MIN_AVAILABLE: str(count)}
    scene = Scene(serving("gpu", resource), node("a"), slice_of("a", device("d0"), device("d1")))
    queue = scene.scheduler.policy.queue(read(*members).pending, scene.scheduler.state)
    outcomes = [scene.scheduler.schedule(member) for member in queue]
    scene.scheduler.settle()
    placed = [outcome for outcome in outcomes if outcome.node is not None and not outcome.is_waiting]
    assert len(placed) == fitting


def test_minimum_resources_of_a_gang_may_be_devices() -> None:
    state = Scene(serving("gpu", GPU), node("a"), slice_of("a", device("d0"))).scheduler.state
    assert missing_resources([(GPU, 2), (NIC, 2)], state) == (NIC,)


def test_plugin_of_a_node_limits_the_capacity_of_a_gang() -> None:
    content = read(serving("gpu", GPU), plugin_node("a", **{GPU: "3"}), node("b"), asking("p", 2))
    state = ClusterState.of(content)
    slots = node_slots(state.compile(content.pending[0]).shape, state)
    assert slots.tolist() == [1, 8]  # on b, the 8 CPUs are the limit


@pytest.mark.parametrize("policy", sorted(BUILTIN.keys() - {"cassini"}))  # cassini needs known NUMA zones
def test_devices_serve_gpus_under_every_policy(policy: str) -> None:
    objects = serving("gpu", "nvidia.com/gpu"), slice_of("a", device("d0")), asking("one", 1, "nvidia.com/gpu")
    scene = Scene(*objects, node("a"), asking("two", 1, "nvidia.com/gpu"), policy=policy)
    assert scene.devices("one") == ["container-0-request-1=d0"]
    assert scene.outcomes["one"].allocation.gpus == ()
    assert [code for code, _ in scene.reasons("two")] == ["DevicesNotAvailable"]


def test_headroom_counts_free_devices() -> None:
    scene = Scene(
        serving("gpu", GPU), node("a"), node("b"), slice_of("a", *(device(f"d{i}") for i in range(3))),
        slice_of("b", device("d0")), asking("one"),
    )  # fmt: skip
    (one,) = scene.content.pending
    scene.scheduler.state.forget(one.key)
    free = msgspec.structs.replace(one, shape=alone(one.shape))
    copies = Headroom().count(scene.scheduler, free, TrialBudget(1000))
    assert copies.counts.tolist() == [3, 1]


def test_export_reads_back_to_the_same_content() -> None:
    init = container("i0", resources={GPU: "2"}), container("side", sidecar=True, resources={GPU: "1"})
    content = read(
        serving("gpu", GPU), kind("nic"), node("a"), slice_of("a", device("d0")),
        pod("p", container("main", resources={GPU: "1", NIC: "2"}), init=init), naming("left", asking("q")),
    )  # fmt: skip
    again = parse_cluster([("cluster", write_cluster(content))])
    assert again.devices == content.devices
    assert [one.shape.extended for one in again.pending] == [one.shape.extended for one in content.pending]
    assert [one.extended_claim for one in again.pending] == ["", "left"]


def test_devices_that_serve_gpus_are_not_completed_with_cards_of_the_node() -> None:
    """The agent reports both GPUs of the node, and their device plugin does not run."""
    state = ClusterState([built(a_node("n").gpus(2))])
    pod = built(a_pod("p").gpu(1))
    claim = ExtendedClaim("c", (ClaimedDevices("r", "gpu", 1),), (DeviceMapping("main", "nvidia.com/gpu", "r"),))
    assert state.assume(state.compile(pod), 0, Allocation(extended=claim)).allocation.gpus == ()
    state.forget(pod.key)
    assert len(state.assume(state.compile(pod), 0).allocation.gpus) == 1


def test_share_of_another_device_than_the_recorded_one_is_in_use() -> None:
    """The claim still has its share of d0 in the cluster; the next decision chose a share of d1."""
    d0, d1 = (DeviceId(DRIVER, "n", name) for name in ("d0", "d1"))
    recorded = ResourceClaim("default", "c", allocated=(AllocatedDevice(d0, consumed={"memory": 1000}),))
    devices = tuple(Device(each, node="n") for each in (d0, d1))
    known = Devices(devices, claims={recorded.key: recorded})
    grants = [DeviceGrant("c", "", "r", d1, consumed={"memory": 2000})]
    usage = DeviceUsage(known, {recorded.key: grants})
    assert usage.shares == {d0: {"memory": 1000}, d1: {"memory": 2000}}
    usage.update(recorded.key, recorded, [DeviceGrant("c", "", "r", d0, consumed={"memory": 1000})])
    assert usage.shares == {d0: {"memory": 1000}}
