"""Nearest fit, one field at a time; its correctness is tested in `test_nearest_fit_minimality`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hetsched.contracts.api.decision import FieldChange, NearestFit
from hetsched.contracts.objects.node_report import PowerReport
from hetsched.contracts.objects.policy import PluginUse
from hetsched.engine.explain.nearest_fit import SearchBudget, nearest_fit
from hetsched.engine.framework.policy import Policy
from tests.builders import NodeBuilder, PodBuilder, a_node, a_pod
from tests.unit.engine.fleet import HOSTNAME, ZONE, built, policy_of, scheduler


def suggestions(
    pod: PodBuilder, nodes: list[NodeBuilder], running: Sequence[PodBuilder] = (), policy: Policy | str = "hetsched"
) -> tuple[NearestFit, ...]:
    deciding = scheduler(nodes, running, policy=policy)
    assert deciding.schedule(built(pod)).node is None
    return nearest_fit(deciding, built(pod))


def test_contract_example() -> None:
    nodes = [a_node("gpu-1").gpus(1, "T4", 15360), a_node("gpu-2").gpus(1, "Tesla-V100-SXM2-32GB", 32510)]
    assert suggestions(a_pod().gpu(1, memory_mib=40960), nodes) == (
        NearestFit("gpu-memory 40960 -> 32510 MiB", "oks/gpu-memory", "40960", "32510", ("gpu-2",), 1),
    )


WEB = a_pod("other").labelled(app="web").running_on("n")
ZONED = a_node("n").labelled({ZONE: "a"})


@pytest.mark.parametrize(
    ("pod", "nodes", "running", "change", "field", "to"),
    [
        (a_pod().cpu(9), [a_node("n").cpu(8)], [], "cpu 9 -> 8", "resources.requests.cpu", "8"),
        # 8 CPUs, of which 500m are taken.
        (a_pod().cpu(9), [a_node("n").cpu(8)], [a_pod("r").cpu("500m").running_on("n")],
         "cpu 9 -> 7.5", "resources.requests.cpu", "7500m"),
        (a_pod().memory("64Gi"), [a_node("n").memory("48Gi")], [],
         "memory 64Gi -> 48Gi", "resources.requests.memory", "48Gi"),
        (a_pod().requesting("example.com/fpga", 2), [a_node("n")], [],
         "example.com/fpga 2 -> 0", "resources.requests.example.com/fpga", "0"),
        (a_pod().gpu(4), [a_node("n").gpus(3)], [], "gpu-number 4 -> 3", "oks/gpu-number", "3"),
        (a_pod().gpu(4, vendor="nvidia").requesting("nvidia.com/gpu", 4), [a_node("n").gpus(3)], [],
         "gpu-number 4 -> 3", "resources.limits.nvidia.com/gpu", "3"),
        (a_pod().gpu(1, milli=700), [a_node("n").gpus(1)], [a_pod("r").gpu(1, milli=600).running_on("n")],
         "gpu-milli 700 -> 400", "hetsched.io/gpu-milli", "400"),
        (a_pod().gpu(1, cores=9000), [a_node("n").gpus(1, cores=6912)], [],
         "gpu-core 9000 -> 6912", "oks/gpu-core", "6912"),
        (a_pod().gpu(1, model="H100"), [a_node("n").gpus(1)], [],
         "gpu-model H100 -> H100|A100-SXM4-40GB", "hetsched.io/gpu-model", "H100|A100-SXM4-40GB"),
        (a_pod().isa("rv64gcv"), [a_node("n").arch("riscv64", "rv64gc")], [],
         "isa rv64gcv -> rv64gc", "hetsched.io/isa", "rv64gc"),
        (a_pod().isa("x86-64-v4"), [a_node("n").isa("x86-64-v3")], [],
         "isa x86-64-v4 -> x86-64-v3", "hetsched.io/isa", "x86-64-v3"),
        (a_pod().isa("rv64gcv"), [a_node("n").isa("x86-64-v3", emulated=("rv64gcv",))], [],
         "allow emulation of rv64gcv", "hetsched.io/emulated-isa", "rv64gcv"),
        (a_pod().isa("rv64gcv", emulated="rv64gcv"), [a_node("n").isa("x86-64-v3", emulated=("rv64gc",))], [],
         "emulated-isa rv64gcv -> rv64gc", "hetsched.io/emulated-isa", "rv64gc"),
        (a_pod().isa("rv64gc"), [a_node("n").isa("x86-64-v3")], [],
         "isa rv64gc -> amd64, which requires a different build", "hetsched.io/isa", "amd64"),
        (a_pod(), [a_node("n").tainted("dedicated", "db")], [],
         "tolerate dedicated=db:NoSchedule", "spec.tolerations", "dedicated=db:NoSchedule"),
        (a_pod().on_nodes_with(disk="ssd"), [a_node("n")], [], "remove nodeSelector disk=ssd", "spec.nodeSelector", ""),
        (a_pod().node_affinity((("rack", "Gt", ("2",)), (HOSTNAME, "Exists", ()))), [a_node("n")], [],
         "remove node affinity rack > 2", "spec.affinity.nodeAffinity", ""),
        (a_pod().near(HOSTNAME, app="db"), [a_node("n")], [],
         f"remove podAffinity app=db over {HOSTNAME}", "spec.affinity.podAffinity", ""),
        (a_pod().away_from(HOSTNAME, app="web"), [a_node("n")], [WEB],
         f"remove podAntiAffinity app=web over {HOSTNAME}", "spec.affinity.podAntiAffinity", ""),
        (a_pod().host_port(80), [a_node("n")], [a_pod("r").host_port(80).running_on("n")],
         "remove host port 80/TCP", "spec.containers.ports.hostPort", ""),
        # One web pod in zone a, none in zone b, where nothing fits: 2 - 0 exceeds 1.
        (a_pod().labelled(app="web").spread(ZONE, app="web"), [ZONED, a_node("m").labelled({ZONE: "b"}).pods(0)], [WEB],
         f"spread over {ZONE} DoNotSchedule -> ScheduleAnyway",
         "spec.topologySpreadConstraints[0].whenUnsatisfiable", "ScheduleAnyway"),
    ],
)  # fmt: skip
def test_single_field_and_its_suggested_value(
    pod: PodBuilder, nodes: list[NodeBuilder], running: list[PodBuilder], change: str, field: str, to: str
) -> None:
    first = suggestions(pod, nodes, running)[0]
    assert (first.change, first.field, first.to, first.nodes, first.also) == (change, field, to, ("n",), None)


def test_smallest_sufficient_skew_is_suggested() -> None:
    nodes = [ZONED, a_node("m").labelled({ZONE: "b"}).pods(0)]
    running = [WEB, a_pod("another").labelled(app="web").running_on("n")]
    fits = suggestions(a_pod().labelled(app="web").spread(ZONE, app="web"), nodes, running)
    assert [(fit.from_, fit.to) for fit in fits if fit.field.endswith("maxSkew")] == [("1", "3")]


def test_cpus_of_one_zone_stay_whole_and_awareness_may_go() -> None:
    node = a_node("n").zone("node-0", "0-3").zone("node-1", "4-7").kubelet("none", "none")
    fits = suggestions(a_pod().guaranteed().cpu(6).numa(True, "exclusive"), [node])
    assert [(fit.field, fit.from_, fit.to) for fit in fits] == [
        ("resources.requests.cpu", "6", "4"), ("topology.crane.io/topology-awareness", "true", "false"),
    ]  # fmt: skip


def test_zero_cpu_and_memory_are_not_suggested() -> None:
    """A pod rejected because of unknown zones gets the suggestion to drop its zones, not to request no CPU."""
    fits = suggestions(a_pod().guaranteed().cpu(4).numa(True, "exclusive"), [a_node("n").cpu(16)])
    assert [fit.change for fit in fits] == ["cpu-policy exclusive -> none and topology-awareness true -> false"]
    # Of two CPUs one is left if the node has one; if it has none left, there is no suggestion.
    held = [a_pod("r").cpu(8).memory("1Gi").running_on("n")]
    assert suggestions(a_pod().cpu(2), [a_node("n").cpu(8)], held) == ()
    held = [a_pod("r").cpu(1).memory("32Gi").running_on("n")]
    assert suggestions(a_pod().memory("1Gi"), [a_node("n").memory("32Gi")], held) == ()


def test_watts_and_expected_use_are_numbers_too() -> None:
    power = policy_of("resource-fit", "power", "least-allocated")
    limited = a_node("n").having(power=PowerReport(headroom_watts=200))
    (fit,) = suggestions(a_pod().shaped(expected_watts=300), [limited], policy=power)
    assert (fit.change, fit.field, fit.to) == ("expected-watts 300 -> 200 W", "hetsched.io/expected-watts", "200")
    measured = policy_of("resource-fit", PluginUse("measured-fit"), "least-allocated")
    (use,) = suggestions(a_pod().expecting(cpu="6"), [a_node("n").cpu(8).using(cpu="3")], policy=measured)
    # 8 CPUs, 3 in use.
    assert (use.field, use.from_, use.to) == ("hetsched.io/expected-usage", '{"cpu":"6"}', '{"cpu":"5"}')


def test_two_fields_are_suggested_only_if_no_single_one_helps() -> None:
    (fit,) = suggestions(a_pod().cpu(16).on_nodes_with(disk="ssd"), [a_node("n").cpu(8)])
    assert fit.change == "cpu 16 -> 8 and remove nodeSelector disk=ssd"
    assert (fit.field, fit.from_, fit.to) == ("resources.requests.cpu", "16", "8")
    assert fit.also == FieldChange("spec.nodeSelector", "disk=ssd", "")
    nodes = [a_node("n").cpu(8), a_node("m").labelled(disk="ssd")]
    (alone,) = suggestions(a_pod().cpu(16).on_nodes_with(disk="ssd"), nodes)
    assert (alone.change, alone.also) == ("cpu 16 -> 8", None)


def test_smallest_change_is_first_and_many_nodes_are_counted() -> None:
    nodes = [a_node(f"n{number:02}").cpu(8).memory("1Gi") for number in range(12)]
    cpu, memory = suggestions(
        a_pod().cpu(9).memory("2Gi"), [*nodes, a_node("m").cpu(64).memory("1Gi"), a_node("x").cpu(8)]
    )
    # A ninth of the CPUs compared with half of the memory.
    assert (cpu.change, memory.change) == ("cpu 9 -> 8", "memory 2Gi -> 1Gi")
    (many,) = suggestions(a_pod().cpu(9), nodes)
    assert (many.count, many.nodes) == (12, tuple(f"n{number:02}" for number in range(10)))


def test_toleration_precedes_the_loss_of_a_selector() -> None:
    tainted = a_node("gpu").labelled({"pool": "gpu"}).tainted("gpu")
    plain = [a_node("a"), a_node("b")]
    changes = [found.change for found in suggestions(a_pod().on_nodes_with(pool="gpu"), [tainted, *plain])]
    assert changes == ["tolerate gpu:NoSchedule", "remove nodeSelector pool=gpu"]


def test_toleration_of_a_condition_or_cordon_is_never_suggested() -> None:
    sick = [a_node("a").cordoned(), a_node("b").not_ready().tainted("node.kubernetes.io/not-ready", effect="NoExecute")]
    assert suggestions(a_pod(), sick) == ()


def test_exhausted_search_returns_its_best_result() -> None:
    deciding = scheduler([a_node("n").cpu(8)], policy="hetsched")
    pod = built(a_pod().cpu(9).host_port(80))
    assert nearest_fit(deciding, pod, SearchBudget(rows=0)) == ()
    assert nearest_fit(deciding, pod)[0].change == "cpu 9 -> 8"


def test_misconfigured_pod_has_no_nearest_fit() -> None:
    assert nearest_fit(scheduler([a_node("n")], policy="hetsched"), built(a_pod().wrong())) == ()
