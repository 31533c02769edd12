"""An anonymised export places the same pods on the same nodes, for the same reasons."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetsched.adapters.anonymising import anonymised
from hetsched.adapters.anonymising.well_known import HOST_NAME
from hetsched.adapters.files import parse_cluster, parse_workload
from hetsched.adapters.objects.export.cluster import write_cluster
from hetsched.adapters.traces.simulated_fleet import demo_cluster, demo_workload
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.node_constraints import Expression
from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.contracts.objects.storage import (
    NO_PROVISIONER,
    PersistentVolume,
    Storage,
    StorageClass,
    VolumeClaim,
)
from hetsched.contracts.objects.workload import ClaimRequest, ClaimUse, PodSpec, PodTerm
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import compile_policy
from tests.builders import a_node, a_pod, matching
from tests.unit.adapters.anonymous import REGISTRY, decided
from tests.unit.adapters.drawn_objects import CLUSTERS, Plain
from tests.unit.adapters.reading import content as read_text
from tests.unit.adapters.reading import pod_text
from tests.unit.engine.draws import NAMESPACES, node_reports, pod_lists
from tests.unit.engine.test_devices import (
    DRIVER,
    OWN,
    claim,
    counters,
    device,
    exactly,
    in_rack,
    kind,
    memory,
    node,
    part,
    pod,
    share,
    shared_slice,
    slice_of,
)

GIB = 2**30
EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
REFUSED = {"wrong-cards.yaml"}  # it shows rejected items
# A policy with random ties by name selects differently for other names.
POLICIES = sorted(name for name, spec in BUILTIN.items() if spec.ties.by == "name")


@cache
def examples() -> ClusterContent:
    files = [path for path in sorted(EXAMPLES.glob("*.yaml")) if path.name not in REFUSED]
    return parse_cluster([(path.name, path.read_bytes()) for path in files])


@cache
def demo(seed: int) -> ClusterContent:
    """Return the demo fleet with thirty pending workloads of its stream."""
    fleet = demo_cluster(seed)
    items = [manifest for sequence in range(30) for manifest in demo_workload(seed, sequence)]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items}).encode()
    return msgspec.structs.replace(fleet, pending=parse_workload([("stream", text)], known=fleet).pending)


def again(content: ClusterContent) -> ClusterContent:
    """Return an anonymised copy, parsed again."""
    return parse_cluster([("export.json", write_cluster(anonymised(content)))])


def unread(content: ClusterContent) -> ClusterContent:
    """Remove the notes that parsing adds to a node."""
    nodes = tuple(msgspec.structs.replace(node, source="", problems=()) for node in content.nodes)
    return msgspec.structs.replace(content, nodes=nodes)


@pytest.mark.parametrize("policy", POLICIES)
def test_examples_have_equal_placements(policy: str) -> None:
    found = decided(examples(), BUILTIN[policy])
    # Only `wrong` is not placed; `binpack` fills the RISC-V node before the RISC-V pod.
    assert len(found["placed"]) == (8 if policy == "binpack" else 9)
    assert decided(again(examples()), BUILTIN[policy]) == found


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 5), st.sampled_from(POLICIES))
def test_demo_fleets_have_equal_placements(seed: int, policy: str) -> None:
    found = decided(demo(seed), BUILTIN[policy])
    assert len(found["placed"]) > 20
    assert decided(again(demo(seed)), BUILTIN[policy]) == found


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["a", "a-b", "a.b", "ab", "n1", "zeta", "z-1", "Z"]), min_size=2, unique=True), st.data()
)
def test_placements_agree_under_any_rules(names: list[str], data: st.DataObject) -> None:
    fleet: list[NodeReport] = [data.draw(node_reports(name)) for name in names]
    pods: list[PodSpec] = data.draw(pod_lists())
    content = ClusterContent(nodes=tuple(fleet), pending=tuple(pods), namespaces=NAMESPACES)
    assert decided(anonymised(content)) == decided(content)


@settings(max_examples=100, deadline=None)
@given(CLUSTERS)
def test_any_parsed_content(objects: list[Plain]) -> None:
    content = parse_cluster([("f", json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}).encode())])
    assert decided(again(content)) == decided(content)


@settings(max_examples=100, deadline=None)
@given(CLUSTERS)
def test_written_export_equals_the_read_one(objects: list[Plain]) -> None:
    content = parse_cluster([("f", json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}).encode())])
    assert unread(again(content)) == unread(anonymised(content))


@pytest.mark.parametrize("content", [examples(), demo(3)], ids=["examples", "demo"])
def test_anonymising_twice_changes_nothing_more(content: ClusterContent) -> None:
    once = anonymised(content)
    assert anonymised(once) == once


def test_ties_go_to_the_same_node() -> None:
    nodes = tuple(a_node(name).build() for name in ("zulu", "acme-2", "acme"))
    content = ClusterContent(nodes=nodes, pending=(a_pod("p").build(),))
    assert decided(again(content))["placed"][0][0] == 2


def test_pods_without_an_allocation_hold_the_same_cards() -> None:
    # The lower `namespace/name` holds the lower GPU, and `team-a/x` is lower than `team/x`.
    machine = a_node("n").gpus(2).build()
    running = tuple(a_pod("x", space).gpu(1).running_on("n").build() for space in ("team", "team-a"))
    copy = again(ClusterContent(nodes=(machine,), running=running))
    placed = ClusterState.of(copy).placed_pods
    assert [placed[one.key].allocation.gpus[0].index for one in copy.running] == [1, 0]


def test_labels_are_compared_by_size_as_before() -> None:
    content = read_text(
        """
        {apiVersion: v1, kind: Node, metadata: {name: old, labels: {acme/rack: "9"}}, status:
          {allocatable: {cpu: "4", memory: 8Gi, pods: "9"}, conditions: [{type: Ready, status: "True"}]}}
        ---
        {apiVersion: v1, kind: Node, metadata: {name: new, labels: {acme/rack: "10"}}, status:
          {allocatable: {cpu: "4", memory: 8Gi, pods: "9"}, conditions: [{type: Ready, status: "True"}]}}
        ---
        apiVersion: v1
        kind: Pod
        metadata: {name: p}
        spec:
          containers: [{name: main}]
          affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
            {matchExpressions: [{key: acme/rack, operator: Gt, values: ["9"]}]}]}}}
        """,
        workload=False,
    )
    assert decided(again(content))["placed"][0][0] == 1


def test_topology_awareness_label_is_exported() -> None:
    key = "topology.crane.io/topology-awareness"
    (node,) = again(ClusterContent(nodes=(a_node("n").labelled({key: "True"}).build(),))).nodes
    assert node.labels[key] == "True"


def test_resources_of_a_company_are_counted_as_before() -> None:
    nodes = (a_node("one").offering("acme.com/fpga", 1).build(), a_node("none").build())
    pods = tuple(a_pod(name).requesting("acme.com/fpga", 1).build() for name in ("a", "b"))
    found = decided(again(ClusterContent(nodes=nodes, pending=pods)))
    assert (found["placed"][0][0], list(found["unplaced"])) == (0, [1])


def test_namespaces_are_selected_as_before() -> None:
    nodes = tuple(a_node(name).labelled({HOST_NAME: name}).build() for name in ("a", "b"))
    there = a_pod("db", "payments").labelled(app="db").running_on("b").build()
    spaces = matching(**{"kubernetes.io/metadata.name": "payments"})
    asks = a_pod("web").shaped(affinity=(PodTerm(HOST_NAME, matching(app="db"), namespace_selector=spaces),)).build()
    content = ClusterContent(nodes=nodes, running=(there,), pending=(asks,))
    assert decided(again(content))["placed"][0][0] == 1


def test_images_narrow_the_nodes_as_before() -> None:
    images = '{"acme:1": ["Linux/AMD64", "linux/acme64", "unknown/unknown"], "acme:2": ["linux/aarch64/v9"]}'
    asks = pod_text("containers: [{name: a, image: 'acme:1'}, {name: b, image: 'acme:2'}]", annotations={
        "hetsched.io/image-platforms": images,
    })  # fmt: skip
    found, copy = read_text(asks), again(read_text(asks))
    (demand,) = {one.shape.isa and one.shape.isa.images for one in found.pending}
    assert copy.pending[0].shape.isa is not None
    assert copy.pending[0].shape.isa.images == demand
    facts = {image.image: image.platforms for image in copy.pending[0].image_facts}
    assert facts["example.invalid/image-0001"] == ("linux/amd64", "linux/alias-0001", "unknown/unknown")


def test_devices_are_chosen_as_before() -> None:
    alike = [{"matchAttribute": f"{DRIVER}/root"}]
    objects = [
        *(node(name) for name in ("n1", "n2")), kind(),
        slice_of("n2", device("d0", root=2), device("d1", "b", root=1), device("d2", "b", root=2)),
        claim("c", exactly("one", f'{OWN}.model == "b"'), exactly("two"), constraints=alike),
        claim("never", exactly("one", f"{OWN}.speed > 1")), pod("c"), pod("never", name="q"),
    ]  # fmt: skip
    copy = again(parse_cluster([("f", json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}).encode())]))
    scheduler = Scheduler(ClusterState.of(copy), compile_policy(BUILTIN["hetsched"], REGISTRY))
    found = scheduler.schedule(copy.pending[0])
    assert (found.node, [grant.device.name for grant in found.allocation.devices]) == (
        "node-0002", ["device-0003", "device-0001"],
    )  # fmt: skip
    assert diagnose(scheduler, copy.pending[1]).reasons[0].code == "DeviceSelectorUnknown"


def test_shares_counters_and_taints_decide_as_before() -> None:
    tainted = {"taints": [{"key": "broken", "value": "fan", "effect": "NoSchedule"}]}
    tolerant = {"tolerations": [{"key": "broken", "value": "fan"}]}
    distinct = {"constraints": [{"distinctAttribute": f"{DRIVER}/root"}]}
    shared = share("d0", "40", default="10", validValues=["10", "20"])
    objects = [
        node("n1", rack="r1"), node("n2", rack="r2"), kind(), counters("n1", slots="2"),
        slice_of("n1", part("p0", slots="2"), part("p1", slots="1"), part("p2", slots="1"), count=2),
        shared_slice(shared, device("d1", **tainted), **in_rack("r2")),
        *(claim(f"s{number}", exactly("gpu", **memory("15"))) for number in range(3)),
        claim("t", exactly("gpu", f"{OWN}.root == 0", **tolerant), **distinct),
        *(pod(f"s{number}", name=f"q{number}") for number in range(3)), pod("t", name="r"),
    ]  # fmt: skip
    found = parse_cluster([("f", json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}).encode())])
    placements = []
    for content in (found, again(found)):
        scheduler = Scheduler(ClusterState.of(content), compile_policy(BUILTIN["hetsched"], REGISTRY))
        names = sorted(report.name for report in content.nodes)
        outcomes = [scheduler.schedule(one) for one in content.pending]
        shares = [[sorted((grant.consumed or {}).values()) for grant in one.allocation.devices] for one in outcomes]
        rows = [outcome.node and names.index(outcome.node) for outcome in outcomes]
        placements.append(list(zip(rows, shares, strict=True)))
    assert placements[0] == placements[1] == [(1, [[20_000]]), (1, [[20_000]]), (None, []), (0, [[]])]


def test_volumes_are_chosen_as_before() -> None:
    zone = "topology.kubernetes.io/zone"
    nodes = tuple(a_node(name).labelled({zone: f"acme-{name}"}).build() for name in ("a", "b", "c"))
    volumes = {
        name: PersistentVolume(
            name, GIB, ("ReadWriteOnce",), "gold", labels={zone: f"acme-{place}"},
            zones=(Expression(zone, "In", tuple(f"acme-{place}".split("__"))),),
        )
        for name, place in (("v-b", "b__acme-c"), ("v-c", "c"))
    }  # fmt: skip
    asks = VolumeClaim("default", "data", ClaimRequest("gold", GIB, ("ReadWriteOnce",)))
    storage = Storage(volumes, {"default/data": asks}, {"gold": StorageClass(NO_PROVISIONER, waits=True)})
    asking = a_pod("p").shaped(claims=(ClaimUse("data"),)).build()
    found = decided(again(ClusterContent(nodes=nodes, pending=(asking,), storage=storage)))
    assert found["placed"][0][0] == 1


def test_shares_of_teams_and_namespaces_follow_their_names() -> None:
    params = {"team_label": "acme/team", "team_weights": {"red": 5.0}, "namespace_weights": {"payments": 2.0}}
    policy = PolicySpec("fair", (PluginUse("fair-share", params=params), PluginUse("resource-fit")))
    pods = tuple(
        a_pod(f"{team}-{number}", space).cpu(2).labelled(**{"acme/team": team}).build()
        for team, space in (("blue", "web"), ("red", "payments"))
        for number in range(4)
    )
    content = ClusterContent(nodes=(a_node("n").build(),), pending=pods, policies=(policy,))
    copy = again(content)
    # Of four places three go to red, whose weight is five times as large.
    assert sorted(decided(copy, copy.policies[0])["placed"]) == [0, 4, 5, 6]
    assert decided(content, policy) == decided(copy, copy.policies[0])
    assert copy.policies[0].plugins[0].params["namespace_weights"] == {"ns-0001": 2.0}
