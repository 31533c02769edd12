"""Labels and annotations of discovery follow Kubernetes' rules and are parsed back to the same offers."""

from __future__ import annotations

import re

import pytest

from hetsched.adapters.objects.node_isa import isa_report
from hetsched.adapters.objects.node_labels import coarse_labels, emulated_labels, native_labels
from hetsched.contracts.objects.node_report import IsaReport

_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_NAME = re.compile(r"([a-z0-9.]+/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
# The string of a SpacemiT K1 has more than three times the length of a label value.
K1 = (
    "rv64imafdcv_zicbom_zicboz_zicntr_zicond_zicsr_zifencei_zihintpause_zihpm_zfh_zfhmin_zca_zcd_zba_zbb_zbc_zbs_zkt"
    "_zve32f_zve32x_zve64d_zve64f_zve64x_zvfh_zvfhmin_zvkt_sscofpmf_sstc_svinval_svnapot_svpbmt"
)
OFFERS = [
    IsaReport(native=K1),
    IsaReport(native="rv64imafdc", complete=False),
    IsaReport(native="rva22u64_v", emulated=("x86-64-v2", "arm64")),
    IsaReport(native="x86-64-v3+avx512f", emulated=("rv64gc_zba_zbb_zbs", "rv64gc"), cross=("RV64IMFDV",)),
    IsaReport(native="armv8.2-a+sve2", cross=("rv64gcv",)),
    IsaReport(native="rv32imc_xtheadba"),
    IsaReport(emulated=("rv64gc",)),
    IsaReport(),
]


def written(offered: IsaReport) -> tuple[dict[str, str], dict[str, str]]:
    native, emulated = native_labels(offered), emulated_labels(offered)
    return native.labels | emulated.labels, native.annotations | emulated.annotations


@pytest.mark.parametrize("offered", OFFERS, ids=str)
def test_labels_round_trip(offered: IsaReport) -> None:
    labels, annotations = written(offered)
    problems: list[str] = []
    read = isa_report(labels, annotations, problems)
    assert problems == []
    assert (read.native, read.emulated, read.cross) == (offered.native, offered.emulated, offered.cross)
    assert read.native is None or read.complete == offered.complete


@pytest.mark.parametrize("offered", OFFERS, ids=str)
def test_keys_and_values_are_labels(offered: IsaReport) -> None:
    labels, _ = written(offered)
    assert all(_VALUE.fullmatch(value) and _NAME.fullmatch(key) for key, value in labels.items())


def test_long_isa_string_is_split_into_labels() -> None:
    labels, annotations = written(IsaReport(native=K1))
    assert annotations["hetsched.io/isa"] == K1
    # The letters, with B for Zba, Zbb and Zbs together. RVA22 requires Zicbop too, which kernels seldom report.
    assert labels["ARCH"] == "RV64IMAFDCBV"
    assert labels["hetsched.io/isa-level"] == "rva22u64"
    assert {"hetsched.io/riscv.zba", "hetsched.io/riscv.zicond", "hetsched.io/riscv.svpbmt"} <= labels.keys()


@pytest.mark.parametrize(
    ("native", "arch", "level"),
    [
        ("x86-64-v3+avx512f", "X86", "x86-64-v3"),
        ("armv8.2-a", "ARM64", "armv8.2-a"),
        ("rva22u64", "RV64IMAFDCB", "rva22u64"),
    ],
)
def test_levels_have_a_label(native: str, arch: str, level: str) -> None:
    labels, _ = written(IsaReport(native=native))
    assert (labels["ARCH"], labels["hetsched.io/isa-level"]) == (arch, level)


def test_coarse_label_is_no_more_exact_than_its_source() -> None:
    stated = coarse_labels("amd64")
    assert stated.labels == {"ARCH": "X86"}
    nfd = {"kubernetes.io/arch": "amd64", "feature.node.kubernetes.io/cpu-cpuid.X86_64_V3": "true"}
    read = isa_report(nfd | stated.labels, stated.annotations, [])
    assert (read.native, read.complete) == ("x86-64-v3", False)
    # A user's own label is complete.
    assert isa_report(nfd | stated.labels, {}, []).complete is True
    assert coarse_labels("ppc64le").labels == {}


def test_ambiguous_label_counts_as_both() -> None:
    read = isa_report({"QEMU": "RV64IMFDV"}, {}, [])
    assert (read.emulated, read.cross) == (("RV64IMFDV",), ("RV64IMFDV",))
    more = isa_report({"QEMU": "RV64IMFDV"}, {"hetsched.io/cross-isa": "rv64gc"}, [])
    assert more.emulated == ("RV64IMFDV",)
