import pytest

from hetsched.contracts.objects.workload import IsaDemand
from tests.unit.adapters.reading import pod, problems

ISA, ARCH = "hetsched.io/isa", "ARCH"


@pytest.mark.parametrize(
    ("annotations", "labels", "spec", "native", "source"),
    [
        ({ISA: "rv64gc"}, {ISA: "arm64", ARCH: "X86"}, "", "rv64gc", "annotation hetsched.io/isa"),
        ({}, {ISA: "arm64", ARCH: "X86"}, "", "arm64", "label hetsched.io/isa"),
        ({}, {ARCH: "RV64IMFDV"}, "nodeSelector: {kubernetes.io/arch: amd64}", "RV64IMFDV", "label ARCH"),
        ({}, {}, "nodeSelector: {kubernetes.io/arch: amd64}", "amd64", "kubernetes.io/arch"),
        ({}, {}, "nodeSelector: {kubernetes.io/arch: riscv64}", "rv64i", "kubernetes.io/arch"),
        ({ISA: " x86-64-v3+avx512f "}, {}, "", "x86-64-v3+avx512f", "annotation hetsched.io/isa"),
        ({}, {ARCH: "x86-64-v3_avx512f"}, "", "x86-64-v3_avx512f", "label ARCH"),
    ],
)
def test_first_source_of_a_requirement_has_precedence(
    annotations: dict[str, str], labels: dict[str, str], spec: str, native: str, source: str
) -> None:
    assert pod(spec, annotations=annotations, labels=labels).shape.isa == IsaDemand(native=native, source=source)


def affinity(*terms: str) -> str:
    return (
        "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: "
        f"{{nodeSelectorTerms: [{', '.join(f'{{matchExpressions: [{term}]}}' for term in terms)}]}}}}}}"
    )


ARM = "{key: kubernetes.io/arch, operator: In, values: [arm64]}"
EITHER = "{key: kubernetes.io/arch, operator: In, values: [arm64, amd64]}"
ELSE = "{key: disk, operator: Exists}"


@pytest.mark.parametrize(
    ("spec", "native"),
    [
        (affinity(ARM), "arm64"),
        (affinity(f"{ARM}, {ELSE}", ARM), "arm64"),
        (affinity(EITHER), None),
        (affinity(ARM, ELSE), None),
        (affinity("{key: kubernetes.io/arch, operator: NotIn, values: [arm64]}"), None),
        ("nodeSelector: {kubernetes.io/arch: s390x}", None),
    ],
)
def test_affinity_is_a_requirement_only_for_one_architecture(spec: str, native: str | None) -> None:
    found = pod(spec).shape.isa
    assert (found and found.native) == native


def test_emulation_is_allowed_by_annotations_and_isamatchs_label() -> None:
    found = pod(
        annotations={"hetsched.io/emulated-isa": "rv64gc", "hetsched.io/cross-isa": "rv64g"},
        labels={"QEMU": "RV64IMFD"},
    )
    assert found.shape.isa == IsaDemand(emulated="rv64gc", cross="rv64g", qemu="RV64IMFD")


@pytest.mark.parametrize(
    ("annotations", "labels", "field"),
    [
        ({ISA: "rv64gc_zfoo"}, {ARCH: "rv64gc"}, ISA),
        ({}, {ARCH: "SPARC"}, ARCH),
        ({}, {ARCH: ""}, ARCH),
        ({"hetsched.io/emulated-isa": "mips"}, {}, "hetsched.io/emulated-isa"),
        ({"hetsched.io/cross-isa": "x86-64-v9"}, {}, "hetsched.io/cross-isa"),
        ({}, {"QEMU": "RV64"}, "QEMU"),
    ],
)
def test_invalid_requirement_is_reported_and_not_skipped(
    annotations: dict[str, str], labels: dict[str, str], field: str
) -> None:
    found = pod(annotations=annotations, labels=labels)
    ((code, where),) = problems(found)
    assert (code.startswith("Isa"), where) == (True, field)
    assert found.shape.isa is None


def test_missing_request_is_no_requirement() -> None:
    assert pod().shape.isa is None


@pytest.mark.parametrize(("label", "meant"), [("ARM", "arm64"), ("arm", "arm64"), ("RISC-V", "rv64i")])
def test_architecture_labels_of_the_publication_are_accepted(label: str, meant: str) -> None:
    for key in ("ARCH", "QEMU"):
        found = pod(labels={key: label})
        assert problems(found) == []
        assert found.shape.isa is not None
        assert (found.shape.isa.native or found.shape.isa.qemu) == meant
    for key in ("hetsched.io/isa", "hetsched.io/emulated-isa", "hetsched.io/cross-isa"):
        found = pod(annotations={key: label})
        assert problems(found) == []
        assert found.shape.isa is not None
        assert (found.shape.isa.native or found.shape.isa.emulated or found.shape.isa.cross) == meant
