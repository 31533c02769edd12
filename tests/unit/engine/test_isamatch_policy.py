"""The policy isamatch: the QEMU pass, then ARCH, then the ordinary default, and its messages."""

from __future__ import annotations

from hetsched.adapters.files import parse_cluster, parse_workload
from hetsched.contracts.api.decision import Verdict
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.framework.outcome import Outcome
from hetsched.engine.simulation.what_if import what_if
from tests.builders import NodeBuilder, PodBuilder, a_node, a_pod
from tests.unit.engine.fleet import ask, scheduler

EMULATOR = a_node("emulator").isa("X86", emulated=("RV64IMFDV",), cross=("RV64IMFDV",))
NATIVE = a_node("native").isa("RV64IMFD")
X86 = a_node("x86").isa("X86")
QEMU_FIRST = {"mode": "paper", "passes": "qemu-first"}


def placed(pod: PodBuilder, *nodes: NodeBuilder) -> Outcome:
    return scheduler(nodes, policy="isamatch").schedule(pod.build())


def mode_of(outcome: Outcome) -> tuple[str | None, str, str | None]:
    assert outcome.allocation.isa is not None
    return outcome.node, outcome.allocation.isa.mode, outcome.allocation.isa.offered


def test_emulator_precedes_a_native_node() -> None:
    # Affinity 4/5 by QEMU against 4/4 by ARCH: the pass decides before the affinity.
    both = a_pod().isa("RV64IMFD", qemu="RV64IMFD")
    assert mode_of(placed(both, EMULATOR, NATIVE)) == ("emulator", "emulated", "RV64IMFDV")


def test_arch_decides_without_a_free_emulator() -> None:
    both = a_pod().isa("RV64IMFD", qemu="RV64IMFD")
    assert mode_of(placed(both, X86, NATIVE)) == ("native", "native", "RV64IMFD")
    assert mode_of(placed(both.cpu(2), EMULATOR.cpu(1), NATIVE)) == ("native", "native", "RV64IMFD")


def test_native_placement_is_not_called_emulated() -> None:
    native_too = a_node("n").isa("RV64IMFDV", emulated=("RV64IMFDV",))
    assert mode_of(placed(a_pod().isa(qemu="RV64IMFD"), native_too)) == ("n", "native", "RV64IMFDV")


def test_qemu_pod_without_arch_is_pending_without_an_emulator() -> None:
    alone = a_pod().isa(qemu="RV64IMFD")
    answer = ask("isa-match", alone, [NATIVE, X86], params=QEMU_FIRST)
    assert answer.feasible == []
    assert answer.codes("native") == answer.codes("x86") == ["IsaNotEmulated"]
    assert "RV64IMFD" in answer.reasons["native"][0].message
    diagnosis = diagnose(scheduler([NATIVE, X86], policy="isamatch"), alone.build())
    assert diagnosis.verdict is Verdict.NEVER_FITS
    # All other policies let the pod run natively.
    assert ask("isa-match", alone, [NATIVE, X86]).feasible == ["native"]


def test_pod_without_labels_uses_the_default_policy() -> None:
    nodes = [a_node("a").isa("RV64IMFD"), a_node("b").isa("X86"), a_node("c").isa("ARM64")]
    running = [a_pod("one").running_on("a"), a_pod("two").running_on("b")]
    picks = [scheduler(nodes, running, policy=p).schedule(a_pod().build()).node for p in ("isamatch", "default-kube")]
    assert picks == ["c", "c"]


def test_other_architectures_match_by_label_or_name() -> None:
    # ARM is part of ARM64, as published; amd64 is not part of X86, although it is the same machine.
    fleet = [a_node("arm").isa("ARM64"), a_node("x86").isa("X86")]
    assert ask("isa-match", a_pod().isa("ARM64"), fleet, params=QEMU_FIRST).feasible == ["arm"]
    assert ask("isa-match", a_pod().isa("amd64"), fleet, params=QEMU_FIRST).feasible == ["x86"]
    assert ask("isa-match", a_pod().isa("X86"), [a_node("n").isa("X86-64-v3")], params=QEMU_FIRST).feasible == ["n"]


def test_letters_ignore_implied_extensions() -> None:
    # V implies D today; the publication's letters do not contain that.
    vector = a_node("vector").isa("RV64IMV")
    assert ask("isa-match", a_pod().isa("RV64IMFD"), [vector]).feasible == ["vector"]
    answer = ask("isa-match", a_pod().isa("RV64IMFD"), [vector], params=QEMU_FIRST)
    assert [refusal.missing for refusal in answer.reasons["vector"]] == [("d", "f")]


def test_widths_must_be_equal_though_the_publication_compares_letters_only() -> None:
    answer = ask("isa-match", a_pod().isa("RV32IM"), [a_node("n").isa("RV64IM")], params=QEMU_FIRST)
    assert answer.codes("n") == ["IsaArchMismatch"]


def test_profiles_use_the_lattice() -> None:
    fleet = [a_node("plain").isa("rv64gc"), a_node("profile").isa("rva22u64_v")]
    assert ask("isa-match", a_pod().isa("rva22u64"), fleet, params=QEMU_FIRST).feasible == ["profile"]
    assert ask("isa-match", a_pod().isa("RV64IMFD"), fleet, params=QEMU_FIRST).feasible == ["plain", "profile"]


def test_architecture_labels_of_the_publication_are_placed() -> None:
    def node(name: str, arch: str) -> str:
        return (
            f"{{apiVersion: v1, kind: Node, metadata: {{name: {name}, labels: {{ARCH: {arch}}}}}, "
            "status: {allocatable: {cpu: 4, memory: 8Gi, pods: 9}}}"
        )

    def pod(name: str, arch: str) -> str:
        return (
            f"{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, labels: {{ARCH: {arch}}}}}, "
            "spec: {containers: [{name: main}]}}"
        )

    fleet = {"arm": "ARM64", "board": "RV64IMFD", "coarse": "RISC-V", "x": "X86"}
    nodes = "\n---\n".join(node(*each) for each in fleet.items())
    pods = "\n---\n".join([pod("a", "ARM"), pod("r", "RISC-V"), pod("d", "RV64IMFD")])
    state = ClusterState(parse_cluster([("nodes", nodes.encode())]).nodes)
    policy = scheduler([], policy="isamatch").policy
    asked = parse_workload([("pods", pods.encode())]).pending
    found = {placement.pod: placement.node for placement in what_if(state, policy, asked, evaluated_at="").placements}
    assert found == {"default/a": "arm", "default/r": "coarse", "default/d": "board"}
