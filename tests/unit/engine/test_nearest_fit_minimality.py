"""Nearest fit: every result, written into the manifest, places the pod, and no number could be larger."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from hetsched.contracts.api.decision import NearestFit
from hetsched.contracts.objects.node_report import GpuCard, NodeReport
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.explain.nearest_fit import MOST_ANSWERS, nearest_fit
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import compile_policy
from tests.unit.engine.changes import applied, read
from tests.unit.engine.draws import NAMESPACES, mixed_fleets, rarely
from tests.unit.engine.fleet import HOSTNAME, REGISTRY, ZONE

POLICY = compile_policy(BUILTIN["hetsched"], REGISTRY)
FPGA = "example.com/fpga"


@st.composite
def manifests(draw: st.DrawFn, name: str) -> dict[str, Any]:
    """Draw a pod as its user would write it, with few rules, so that dropping one or two may help."""
    whole = draw(st.booleans())
    cpu = draw(st.sampled_from(["2", "4", "9"] if whole else ["0", "100m", "1500m", "3"]))
    requests = {"cpu": cpu, "memory": draw(st.sampled_from(["1Gi", "6Gi", "20Gi"]))}
    limits = dict(requests) if whole else {}
    if draw(st.integers(0, 7)) == 7:
        requests[FPGA] = limits[FPGA] = draw(st.sampled_from(["1", "3"]))
    annotations = draw(rarely(card_wishes, {})) | draw(rarely(isa_wishes, {})) | draw(rarely(zone_wishes, {}))
    if draw(st.integers(0, 5)) == 5:
        limits["nvidia.com/gpu"] = str(draw(st.integers(1, 3)))
        annotations.pop("oks/gpu-number", None)
        annotations.pop("hetsched.io/gpu-milli", None)
    container: dict[str, Any] = {"name": "main", "resources": {"requests": requests, "limits": limits}}
    if draw(st.integers(0, 7)) == 7:
        container["ports"] = [{"containerPort": 80, "hostPort": 80}]
    spec: dict[str, Any] = {"containers": [container]}
    if draw(st.integers(0, 3)) == 3:
        spec["nodeSelector"] = draw(st.sampled_from([{ZONE: "a"}, {ZONE: "b", "rack": "1"}]))
    affinity = draw(rarely(st.sampled_from(_AFFINITIES), None))
    if affinity:
        spec["affinity"] = affinity
    if draw(st.integers(0, 5)) == 5:
        selector = {"matchLabels": {"app": "web"}}
        constraint = {"topologyKey": draw(st.sampled_from([ZONE, HOSTNAME])), "labelSelector": selector}
        spec["topologySpreadConstraints"] = [constraint | {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]
    meta = {"name": name, "labels": {"app": draw(st.sampled_from(["web", "db"]))}, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def _terms(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}


_WEB = {"labelSelector": {"matchLabels": {"app": "web"}}}
_IN_ZONE = {"key": ZONE, "operator": "In", "values": ["a", "b"]}
_ON_RACK = {"key": "rack", "operator": "Gt", "values": ["2"]}
_AFFINITIES = [
    {"podAntiAffinity": _terms({**_WEB, "topologyKey": HOSTNAME})},
    {"podAffinity": _terms({**_WEB, "topologyKey": ZONE})},
    {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [_IN_ZONE, _ON_RACK]},
    ]}}},
]  # fmt: skip
card_wishes = st.fixed_dictionaries(
    {},
    optional={
        "oks/gpu-number": st.sampled_from(["1", "2", "4"]),
        "oks/gpu-memory": st.sampled_from(["16384", "30000", "60000"]),
        "oks/gpu-core": st.sampled_from(["2560", "9000"]),
        "hetsched.io/gpu-model": st.sampled_from(["H100", "A100|T4", "V100"]),
    },
) | st.fixed_dictionaries(
    {"hetsched.io/gpu-milli": st.sampled_from(["200", "700"])}, optional={"oks/gpu-memory": st.just("30000")}
)
isa_wishes = st.fixed_dictionaries(
    {"hetsched.io/isa": st.sampled_from(["rv64gcv", "rva23u64", "x86-64-v4", "armv8.2-a+sve2"])}
)
zone_wishes = st.fixed_dictionaries(
    {"topology.crane.io/cpu-policy": st.sampled_from(["none", "exclusive", "immovable", "numa"])},
    optional={"topology.crane.io/topology-awareness": st.sampled_from(["true", "false"])},
)


@st.composite
def scenes(draw: st.DrawFn) -> tuple[ClusterState, PodSpec]:
    """Draw a cluster with some placed pods, and one more pod."""
    state = ClusterState(draw(mixed_fleets()), (), NAMESPACES)
    scheduler = Scheduler(state, POLICY)
    for number in range(draw(st.integers(0, 6))):
        scheduler.schedule(read(draw(manifests(f"r{number}"))))
    return state, read(draw(manifests("pod")))


def places(state: ClusterState, pod: PodSpec) -> bool:
    return Scheduler(state.fork(), POLICY).schedule(pod).node is not None


@settings(max_examples=150)
@given(scenes())
def test_every_suggestion_places_the_pod(scene: tuple[ClusterState, PodSpec]) -> None:
    state, pod = scene
    assume(not pod.problems and not places(state, pod))
    before = state.digest()
    answers = nearest_fit(Scheduler(state, POLICY), pod)
    assert state.digest() == before
    event("answers: " + ("none" if not answers else "one field" if answers[0].also is None else "two fields"))
    for answer in answers:
        changed = applied(pod, answer)
        assert not changed.problems, answer
        assert places(state, changed), answer
        _, total = Scheduler(state.fork(), POLICY).evaluator.evaluate(state.fork().compile(changed))
        fitting = [name for name, value in zip(state.columns.names, total.tolist(), strict=True) if value > -1e300]
        assert (answer.nodes, answer.count) == (tuple(fitting[:10]), len(fitting)), answer


# -- numbers: as large as possible -----------------------------------------------------------------------------------


@st.composite
def tiny_scenes(draw: st.DrawFn) -> tuple[ClusterState, PodSpec]:
    """Draw machines so small that every value of every number can be tried."""
    nodes = [draw(tiny_nodes(f"n{number}")) for number in range(draw(st.integers(1, 4)))]
    state = ClusterState(nodes)
    scheduler = Scheduler(state, POLICY)
    for number in range(draw(st.integers(0, 4))):
        scheduler.schedule(read(draw(tiny_pods(f"r{number}"))))
    return state, read(draw(tiny_pods("pod")))


@st.composite
def tiny_nodes(draw: st.DrawFn, name: str) -> NodeReport:
    cards = st.builds(GpuCard, memory_mib=st.none() | st.integers(0, 40), cores=st.none() | st.integers(0, 30))
    return NodeReport(
        name=name,
        allocatable={
            "cpu": draw(st.integers(15, 40)), "memory": draw(st.integers(15, 40)), FPGA: draw(st.integers(0, 5)),
        },
        gpus=tuple(msgspec.structs.replace(draw(cards), index=index) for index in range(draw(st.integers(0, 3)))),
    )  # fmt: skip


tiny_wishes = {
    "oks/gpu-number": st.integers(1, 4).map(str),
    "oks/gpu-memory": st.integers(1, 40).map(str),
    "oks/gpu-core": st.integers(1, 30).map(str),
}


@st.composite
def tiny_pods(draw: st.DrawFn, name: str) -> dict[str, Any]:
    requests = {"cpu": f"{draw(st.integers(0, 30))}m", "memory": str(draw(st.integers(0, 30)))}
    limits = {FPGA: str(draw(st.integers(1, 6)))} if draw(st.integers(0, 3)) == 3 else {}
    annotations = draw(rarely(st.fixed_dictionaries({}, optional=tiny_wishes), {}))
    if "oks/gpu-number" not in annotations and draw(st.integers(0, 3)) == 3:
        annotations["hetsched.io/gpu-milli"] = str(draw(st.integers(1, 1000)))
    container = {"name": "main", "resources": {"requests": requests, "limits": limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"containers": [container]},
    }


def numbers_of(pod: PodSpec) -> dict[str, tuple[int, int, str]]:
    """Return field -> (requested, smallest value, suffix) of the numbers that a tiny pod states."""
    found = {
        f"resources.requests.{name}": (pod.shape.request(name), least, "") for name, least in (("memory", 1), (FPGA, 0))
    }
    found["resources.requests.cpu"] = (pod.shape.request("cpu"), 1, "m")
    gpu = pod.shape.gpu
    if gpu is not None:
        found["oks/gpu-memory"] = (gpu.memory_mib, 0, "")
        found["oks/gpu-core"] = (gpu.cores, 0, "")
        found["oks/gpu-number"] = (gpu.count, 1, "")
        if gpu.count == 1:
            found["hetsched.io/gpu-milli"] = (gpu.milli, 1, "")
    return {field: facts for field, facts in found.items() if facts[0]}


@settings(max_examples=60)
@given(tiny_scenes())
def test_suggested_numbers_equal_brute_force(scene: tuple[ClusterState, PodSpec]) -> None:
    state, pod = scene
    assume(not places(state, pod))
    answers = nearest_fit(Scheduler(state, POLICY), pod)
    suggested = {answer.field: answer.to for answer in answers if answer.also is None}
    scheduler = Scheduler(state.fork(), POLICY)
    for field, (asked, least, suffix) in numbers_of(pod).items():
        most = None
        for value in range(asked - 1, least - 1, -1):
            was = f"{asked}{suffix}" if asked else "0"
            fit = NearestFit("", field, was, f"{value}{suffix}", ())
            outcome = scheduler.schedule(applied(pod, fit))
            if outcome.node is not None:
                scheduler.undo(outcome)
                most = "0" if suffix and not value else f"{value}{suffix}"
                break
        event(f"{field}: {'none' if most is None else 'found'}")
        if most is None:
            assert field not in suggested
        elif len(answers) < MOST_ANSWERS:
            assert suggested[field] == most
        else:
            assert suggested.get(field, most) == most


@settings(max_examples=50)
@given(scenes())
def test_suggested_whole_cpus_equal_brute_force(scene: tuple[ClusterState, PodSpec]) -> None:
    state, pod = scene
    asked = pod.shape.request("cpu") // 1000
    assume(not pod.problems and pod.shape.containers and pod.shape.containers[0].cpus and not places(state, pod))
    answers = nearest_fit(Scheduler(state, POLICY), pod)
    suggested = {answer.field: answer.to for answer in answers if answer.also is None}
    most = None
    for cpus in range(asked - 1, 0, -1):
        changed = applied(pod, NearestFit("", "resources.requests.cpu", str(asked), str(cpus), ()))
        if places(state, changed):
            most = str(cpus)
            break
    if state.columns.layout.zones and (most is None or len(answers) < MOST_ANSWERS):
        assert suggested.get("resources.requests.cpu") == most
