"""Hypothesis strategies for engine tests: small clusters and pods that use every rule between pods and nodes.

There are few values per field (three zones, two apps, two namespaces, a few nodes), so that rules interact.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

from hetsched.contracts.objects.node_constraints import Expression, NodeTerm, Toleration
from hetsched.contracts.objects.node_features import REQUIRED_BY
from hetsched.contracts.objects.node_images import pack_images
from hetsched.contracts.objects.node_report import (
    POWER_STATES,
    CardLink,
    GpuCard,
    IsaReport,
    NodeReport,
    NumaReport,
    NumaZone,
    PowerReport,
    Taint,
    Usage,
)
from hetsched.contracts.objects.workload import (
    ContainerDemand,
    GpuDemand,
    HostPort,
    IsaDemand,
    LabelSelector,
    NumaDemand,
    PodSpec,
    PodTerm,
    PreferredNodeTerm,
    Shape,
    SpreadConstraint,
)
from tests.unit.engine.fleet import HOSTNAME, ZONE

GIB = 2**30

NAMESPACES = {"default": {"env": "prod"}, "lab": {"env": "test"}}
EFFECTS = ["NoSchedule", "PreferNoSchedule", "NoExecute"]
KEYS = st.sampled_from([ZONE, HOSTNAME, "rack"])
APPS = st.sampled_from(["web", "db"])


def rarely(strategy: st.SearchStrategy[Any], otherwise: Any) -> st.SearchStrategy[Any]:
    """Draw `otherwise` most of the time, so that rules do not exclude every node."""
    return st.integers(0, 3).flatmap(lambda dice: strategy if dice == 3 else st.just(otherwise))


taints = st.lists(
    st.builds(Taint, st.sampled_from(["a", "b"]), st.sampled_from(["", "x"]), st.sampled_from(EFFECTS)), max_size=2
).map(tuple)
tolerations = st.lists(
    st.builds(
        Toleration,
        st.sampled_from(["", "a", "b", "node.kubernetes.io/unschedulable"]),
        st.sampled_from(["Equal", "Exists"]),
        st.sampled_from(["", "x"]),
        st.sampled_from(["", *EFFECTS]),
    ),
    max_size=2,
).map(tuple)

images = st.sampled_from(["web:1", "db:1"])
node_features = st.sampled_from([(), tuple(REQUIRED_BY), *((name,) for name in REQUIRED_BY)])


@st.composite
def node_reports(draw: st.DrawFn, name: str) -> NodeReport:
    labels = {HOSTNAME: name}
    if zone := draw(st.sampled_from(["", "a", "b", "c"])):
        labels[ZONE] = zone
    if rack := draw(st.sampled_from(["", "1", "2", "10"])):
        labels["rack"] = rack
    cards = draw(st.integers(0, 3))
    return NodeReport(
        name=name,
        labels=labels,
        taints=draw(rarely(taints, ())),
        unschedulable=draw(st.integers(0, 15)) == 15,
        ready=draw(st.integers(0, 15)) != 15,
        allocatable={
            "cpu": draw(st.sampled_from([2000, 4000, 8000])),
            "memory": draw(st.sampled_from([4, 8, 16])) * GIB,
            "pods": draw(st.sampled_from([3, 110, 110])),
            **draw(st.sampled_from([{}, {"example.com/fpga": 1}])),
        },
        gpus=tuple(
            GpuCard(index, healthy=health == "well", maintenance=health == "resting")
            for index, health in enumerate(draw(st.sampled_from(_HEALTH)) for _ in range(cards))
        ),
        declared_features=draw(node_features),
        image_sizes=draw(st.dictionaries(images, st.sampled_from([50 << 20, 900 << 20]), max_size=2).map(pack_images)),
    )


_HEALTH = ("well", "well", "well", "well", "sick", "resting")


@st.composite
def fleets(draw: st.DrawFn, most: int = 7) -> list[NodeReport]:
    return [draw(node_reports(f"n{index}")) for index in range(draw(st.integers(2, most)))]


selectors = st.one_of(
    st.none(),
    st.just(LabelSelector()),
    st.builds(
        lambda operator, app: LabelSelector((Expression("app", operator, (app,)),)),
        st.sampled_from(["In", "In", "NotIn"]),
        APPS,
    ),
)
namespace_selectors = st.one_of(
    st.none(),
    st.none(),
    st.just(LabelSelector()),
    st.just(LabelSelector((Expression("env", "In", ("prod",)),))),
)


def pod_terms(weights: st.SearchStrategy[int]) -> st.SearchStrategy[tuple[PodTerm, ...]]:
    term = st.builds(
        PodTerm,
        KEYS,
        selectors,
        st.sampled_from([(), (), ("lab",)]),
        namespace_selectors,
        weights,
    )
    return st.lists(term, max_size=2).map(tuple)


node_expressions = st.one_of(
    st.builds(Expression, st.just(ZONE), st.sampled_from(["In", "NotIn"]), st.sampled_from([("a",), ("a", "b")])),
    st.builds(Expression, st.sampled_from([ZONE, "rack"]), st.sampled_from(["Exists", "DoesNotExist"])),
    st.builds(Expression, st.just("rack"), st.sampled_from(["Gt", "Lt"]), st.just(("2",))),
)
node_terms = st.builds(
    NodeTerm,
    st.lists(node_expressions, max_size=2).map(tuple),
    st.sampled_from([(), (), (Expression("metadata.name", "NotIn", ("n1",)),)]),
)
spreads = st.lists(
    st.builds(
        SpreadConstraint,
        KEYS,
        st.integers(1, 2),
        st.booleans(),
        selectors,
        st.integers(1, 3),
        st.booleans(),
        st.booleans(),
    ),
    max_size=2,
).map(tuple)
ports = st.lists(
    st.builds(
        HostPort,
        st.sampled_from([80, 443]),
        st.sampled_from(["TCP", "UDP"]),
        st.sampled_from(["0.0.0.0", "127.0.0.1", "10.0.0.1"]),
    ),
    max_size=2,
).map(tuple)
gpu_demands = st.one_of(
    st.none(),
    st.builds(GpuDemand, st.integers(1, 2)),
    st.builds(GpuDemand, st.just(1), st.sampled_from([300, 500])),
)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    cpu, memory = draw(st.sampled_from([0, 250, 1000])), draw(st.sampled_from([0, 1, 3])) * GIB
    requests = [("cpu", cpu), ("memory", memory), ("pods", 1)]
    requests += draw(rarely(st.just([("example.com/fpga", 1)]), []))
    return Shape(
        requests=tuple((name, amount) for name, amount in requests if amount),
        nonzero_cpu_millis=cpu or 100,
        nonzero_memory_bytes=memory or 200 * 2**20,
        node_selector=draw(rarely(st.just(((ZONE, "a"),)), ())),
        node_terms=draw(rarely(st.lists(node_terms, max_size=2).map(tuple), None)),
        preferred_nodes=draw(
            rarely(st.lists(st.builds(PreferredNodeTerm, st.integers(1, 9), node_terms), max_size=2).map(tuple), ())
        ),
        tolerations=draw(tolerations),
        affinity=draw(rarely(pod_terms(st.just(0)), ())),
        anti_affinity=draw(rarely(pod_terms(st.just(0)), ())),
        preferred_affinity=draw(rarely(pod_terms(st.sampled_from([-7, -1, 1, 5])), ())),
        spread=draw(rarely(spreads, ())),
        host_ports=draw(rarely(ports, ())),
        gpu=draw(rarely(gpu_demands, None)),
        required_node=draw(rarely(st.sampled_from(["", "", "n0", "n1"]), "")),
        node_features=draw(rarely(node_features, ())),
        images=draw(st.lists(images, max_size=2).map(sorted).map(tuple)),
    )


@st.composite
def pod_lists(draw: st.DrawFn, most: int = 12) -> list[PodSpec]:
    """Draw pods of a few shapes, so that shapes are repeated."""
    known = draw(st.lists(shapes(), min_size=1, max_size=4))
    return [
        PodSpec(
            namespace=draw(st.sampled_from(["default", "default", "lab", "undeclared"])),
            name=f"p{index}",
            shape=draw(st.sampled_from(known)),
            labels={"app": draw(APPS)},
        )
        for index in range(draw(st.integers(1, most)))
    ]


# -- mixed machines: instruction sets, card facts, measured and expected use ---------------------------------------

isa_strings = st.sampled_from(["rv64gc", "rv64gcv", "rva22u64", "x86-64-v2", "x86-64-v3", "arm64"])
isa_reports = st.builds(
    IsaReport,
    st.none() | isa_strings,
    st.lists(isa_strings, max_size=1).map(tuple),
    st.lists(isa_strings, max_size=1).map(tuple),
    complete=st.booleans(),
)
isa_demands = st.one_of(
    st.builds(IsaDemand, native=isa_strings),
    st.builds(IsaDemand, native=isa_strings, emulated=isa_strings),
    st.builds(IsaDemand, cross=isa_strings),
    st.builds(IsaDemand, qemu=isa_strings),
)
models = st.sampled_from([None, "A100-SXM4-40GB", "Tesla-T4", "Tesla-V100-SXM2-32GB"])
card_demands = st.builds(
    GpuDemand,
    st.integers(1, 2),
    st.just(1000),
    st.sampled_from([0, 0, 16_000, 40_000]),
    st.sampled_from([0, 0, 5_000]),
    st.sampled_from([(), ("A100",), ("T4", "V100")]),
    vendor=st.sampled_from(["", "nvidia"]),
) | st.builds(GpuDemand, st.just(1), st.sampled_from([300, 500]), st.sampled_from([0, 8_000]))
amounts = st.dictionaries(
    st.sampled_from(["cpu", "memory", "hetsched.io/network-mbps"]), st.integers(0, 4000), max_size=3
)


@st.composite
def numa_reports(draw: st.DrawFn) -> NumaReport:
    """Draw zones of at most four CPUs, with CPU ids or only counted, and a kubelet configuration."""
    named = draw(st.booleans())
    zones = []
    for number in range(draw(st.integers(1, 3))):
        first = 4 * number
        amounts = {"cpu": draw(st.sampled_from([2500, 4000])), "memory": draw(st.sampled_from([1, 4])) * GIB}
        zone = NumaZone(
            f"node-{number}",
            f"{first}-{first + 3}" if named else None,
            draw(st.sampled_from([None, f"{first},{first + 1};{first + 2},{first + 3}"])),
            allocatable=amounts,
            offline_capacity_millis=draw(rarely(st.just(1500), None)),
        )
        zones.append(zone)
    return NumaReport(
        tuple(zones),
        draw(st.sampled_from([None, "none", "static"])),
        draw(st.sampled_from([None, "none", "best-effort", "restricted", "single-numa-node"])),
        draw(st.sampled_from([None, "container", "pod"])),
        draw(rarely(st.just("0,5"), None)),
    )


power_reports = st.builds(PowerReport, st.none() | st.sampled_from(POWER_STATES), st.none() | st.integers(0, 900))
numa_demands = st.builds(
    NumaDemand, st.sampled_from([None, True, False]), st.sampled_from(["none", "exclusive", "immovable", "numa"])
)


@st.composite
def mixed_fleets(draw: st.DrawFn) -> list[NodeReport]:
    """Draw nodes that also differ in instruction set, GPU facts, NUMA zones and measured use."""
    return [
        msgspec.structs.replace(
            node,
            isa=draw(isa_reports),
            usage=draw(st.none() | st.builds(Usage, amounts)),
            numa=draw(st.none() | numa_reports()),
            power=draw(rarely(power_reports, None)),
            gpus=tuple(
                msgspec.structs.replace(
                    card,
                    model=draw(models),
                    vendor=draw(st.sampled_from(["", "nvidia"])),
                    memory_mib=draw(st.sampled_from([None, 16_384, 40_960])),
                    cores=draw(st.sampled_from([None, 2_560, 6_912])),
                    numa_zone=draw(st.sampled_from([None, "node-0", "node-1"])),
                    links=draw(rarely(st.just((CardLink(0, "nvlink", 50.0), CardLink(2, "switch"))), ())),
                )
                for card in node.gpus or ()
            ),
        )
        for node in draw(fleets())
    ]


@st.composite
def mixed_pods(draw: st.DrawFn) -> list[PodSpec]:
    """Draw pods that also request instruction sets, GPU facts and zones, and have an expected use."""
    return [
        msgspec.structs.replace(
            pod,
            shape=msgspec.structs.replace(
                pod.shape,
                isa=draw(rarely(isa_demands, None)),
                gpu=draw(rarely(card_demands, None)),
                expected_watts=draw(rarely(st.integers(0, 400), None)),
                expected_usage=draw(rarely(amounts.map(lambda use: tuple(sorted(use.items()))), ())),
                **draw(rarely(aligned(pod.shape), {})),
            ),
            priority=draw(st.integers(-1, 1)),
        )
        for pod in draw(pod_lists())
    ]


@st.composite
def aligned(draw: st.DrawFn, shape: Shape) -> dict[str, Any]:
    """Draw the zone-related part of a shape: a NUMA policy, containers with whole CPUs, a load profile."""
    cpus = draw(st.lists(st.integers(1, 3), max_size=2))
    return {
        "numa": draw(st.none() | numa_demands),
        "containers": tuple(ContainerDemand(count, shape.request("memory"), draw(st.integers(0, 1))) for count in cpus),
        "guaranteed": bool(cpus) and draw(st.booleans()),
        "load_profile": draw(st.sampled_from(["", "busy", "idle", "peaks=08-18"])),
    }
