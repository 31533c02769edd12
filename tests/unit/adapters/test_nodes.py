import msgspec
import pytest

from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.node_report import IsaReport, NodeReport, Taint
from tests.unit.adapters.reading import content

NFD = "feature.node.kubernetes.io/cpu-cpuid."


def node(
    more: str = "", *, labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None
) -> NodeReport:
    meta = {"name": "n", "labels": labels or {}, "annotations": annotations or {}}
    text = f"apiVersion: v1\nkind: Node\nmetadata: {meta}\n"
    (found,) = content(text + more, workload=False).nodes
    return found


def test_amounts_are_in_base_units() -> None:
    found = node("status: {allocatable: {cpu: 3920m, memory: 8Gi, pods: 9, nvidia.com/gpu: 2, ephemeral-storage: 1G}}")
    assert found.allocatable == {
        "cpu": 3920, "memory": 8 * 2**30, "pods": 9, "nvidia.com/gpu": 2, "ephemeral-storage": 10**9,
    }  # fmt: skip


def test_capacity_counts_where_allocatable_is_absent() -> None:
    assert node("status: {capacity: {cpu: 4}}").allocatable == {"cpu": 4000}
    assert node("status: {capacity: {cpu: 4}, allocatable: {cpu: 3}}").allocatable == {"cpu": 3000}


@pytest.mark.parametrize(
    ("conditions", "ready"),
    [
        ("", True),
        ("{type: Ready, status: 'True'}", True),
        ("{type: Ready, status: 'False'}", False),
        ("{type: Ready, status: Unknown}", False),
        ("{type: DiskPressure, status: 'True'}", True),
    ],
)
def test_readiness(conditions: str, ready: bool) -> None:
    assert node(f"status: {{conditions: [{conditions}]}}").ready is ready


def test_taints_and_cordon() -> None:
    taints = "[{key: a.b/c, value: d, effect: NoExecute}, {key: e, effect: NoSchedule}]"
    found = node(f"spec: {{unschedulable: true, taints: {taints}}}")
    assert found.unschedulable
    assert found.taints == (Taint("a.b/c", "d", "NoExecute"), Taint("e", "", "NoSchedule"))


@pytest.mark.parametrize(
    ("labels", "annotations", "native", "source", "complete"),
    [
        ({"ARCH": "X86", "hetsched.io/isa": "rv64gc"}, {"hetsched.io/isa": "rv64gcv"}, "rv64gcv",
         "annotation hetsched.io/isa", True),
        ({"ARCH": "X86", "hetsched.io/isa": "rv64gc"}, {}, "rv64gc", "label hetsched.io/isa", True),
        ({"ARCH": "RV64IMFDV", "kubernetes.io/arch": "riscv64"}, {}, "RV64IMFDV", "label ARCH", True),
        ({"kubernetes.io/arch": "amd64"}, {}, "amd64", "kubernetes.io/arch", False),
        ({"kubernetes.io/arch": "arm64"}, {}, "arm64", "kubernetes.io/arch", False),
        ({"kubernetes.io/arch": "riscv64"}, {}, "rv64i", "kubernetes.io/arch", False),
        ({"kubernetes.io/arch": "s390x"}, {}, None, "", True),
        ({}, {}, None, "", True),
        ({"kubernetes.io/arch": "amd64", NFD + "X86_64_V2": "true", NFD + "X86_64_V3": "true", NFD + "AVX512F": "true",
          NFD + "FMA3": "true", NFD + "NOSUCHFLAG": "true", NFD + "AMXTILE": "false"}, {},
         "x86-64-v3+avx512f+fma", "feature.node.kubernetes.io/cpu-cpuid", False),
        ({"kubernetes.io/arch": "arm64", NFD + "SVE": "true", NFD + "ASIMDDP": "true"}, {},
         "arm64+asimddp+sve", "feature.node.kubernetes.io/cpu-cpuid", True),
        ({"kubernetes.io/arch": "riscv64", NFD + "ZBA": "true"}, {}, "rv64i", "kubernetes.io/arch", False),
    ],
)  # fmt: skip
def test_first_source_of_the_isa_is_used(
    labels: dict[str, str], annotations: dict[str, str], native: str | None, source: str, complete: bool
) -> None:
    arch = "" if native else labels.get("kubernetes.io/arch", "")
    isa = node(labels=labels, annotations=annotations).isa
    assert msgspec.structs.replace(isa, absent=()) == IsaReport(native, (), (), source, complete, arch)


@pytest.mark.parametrize(
    ("words", "absent", "unknown"),
    [
        # AVX2 is unknown: it has no label, and no label denies it. BMI1 is denied and stays unknown.
        (("AVX",), {"avx2", "avx512f"}, {"bmi1", "sse4_2", "avx", "x86-64-v3"}),
        (("AVX", "AVX2", "FMA3"), {"avx512f"}, {"avx2", "fma", "bmi1", "x86-64-v3"}),
        # Level labels are complete: features above the highest level are missing.
        (("AVX", "AVX2", "FMA3", "X86_64_V1", "X86_64_V2"), {"x86-64-v3"}, {"bmi1", "avx2", "x86-64-v4"}),
        (("X86_64_V1",), {"x86-64-v2", "avx2"}, {"bmi1"}),
        (("X86_64_V4", "AVX512F"), {"amx_tile"}, {"avx2", "avx512bw", "bmi1"}),
    ],
)
def test_missing_nfd_label_means_absent_unless_denied(
    words: tuple[str, ...], absent: set[str], unknown: set[str]
) -> None:
    isa = node(labels={"kubernetes.io/arch": "amd64", **{NFD + word: "true" for word in words}}).isa
    assert not isa.complete
    assert absent <= set(isa.absent)
    assert not unknown & set(isa.absent)


def test_stated_feature_is_not_absent_in_any_letter_case() -> None:
    isa = node(labels={"kubernetes.io/arch": "amd64", NFD + "avx2": "true", NFD + "AVX": "true"}).isa
    assert isa.native == "amd64+avx+avx2"
    assert not {"avx", "avx2"} & set(isa.absent)


def test_nodes_without_nfd_labels_have_nothing_absent() -> None:
    assert node(labels={"kubernetes.io/arch": "amd64"}).isa.absent == ()
    assert node(labels={"kubernetes.io/arch": "arm64", NFD + "SVE": "true"}).isa.absent == ()


def test_emulators_and_toolchains() -> None:
    stated = {"hetsched.io/emulated-isa": "arm64, rv64gcv", "hetsched.io/cross-isa": "rv64g"}
    found = node(labels={"QEMU": "RV64GC"}, annotations=stated).isa
    # ISAMatch's label is ambiguous between the two.
    assert (found.emulated, found.cross) == (("arm64", "rv64gcv", "RV64GC"), ("rv64g", "RV64GC"))


def test_invalid_isa_is_reported_and_unknown() -> None:
    found = node(labels={"ARCH": "rv64qq", "kubernetes.io/arch": "riscv64"})
    assert found.isa.native is None
    assert len(found.problems) == 1
    assert found.problems[0].startswith("Isa")


def test_kubectls_copy_of_the_object_is_dropped() -> None:
    stated = {"kubectl.kubernetes.io/last-applied-configuration": "x", "a": "b"}
    assert node(annotations=stated).annotations == {"a": "b"}


@pytest.mark.parametrize(
    "more",
    [
        "status: {allocatable: {cpu: -1}}",
        "status: {allocatable: {nvidia.com/gpu: 0.5}}",
        "status: {allocatable: {'no name': 1}}",
        "status: {allocatable: [1]}",
        "status: 1",
        "spec: {unschedulable: 'true'}",
        "spec: {taints: [{key: a}]}",
        "spec: {taints: [{key: a, effect: Never}]}",
        "spec: {taints: [{key: '', effect: NoSchedule}]}",
        "spec: {taints: {a: b}}",
    ],
)
def test_malformed_node_rejects_the_file(more: str) -> None:
    with pytest.raises(InputError) as refused:
        node(more)
    assert refused.value.place.startswith("file.yaml#1 s")
