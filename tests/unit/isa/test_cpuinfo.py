"""/proc/cpuinfo texts of RISC-V, x86, Arm and other machines."""

import pytest

from hetsched.contracts.errors import InputError
from hetsched.isa import detect, parse, read_cpuinfo
from hetsched.isa.arm import ARM
from hetsched.isa.x86 import X86


def riscv_cpus(*strings: str, **more: str) -> str:
    """Return one block for each hart; `more` lines are in every block."""
    lines = "".join(f"{key.replace('_', '-')}\t: {value}\n" for key, value in more.items())
    return "\n".join(f"processor\t: {at}\nhart\t\t: {at}\nisa\t\t: {isa}\n{lines}" for at, isa in enumerate(strings))


def x86_cpus(*flags: str) -> str:
    return "\n".join(
        f"processor\t: {at}\nvendor_id\t: GenuineIntel\nflags\t\t: {words}\n" for at, words in enumerate(flags)
    )


def arm_cpus(*features: str) -> str:
    return "\n".join(
        f"processor\t: {at}\nFeatures\t: {words}\nCPU implementer\t: 0x41\nCPU architecture: 8\n"
        for at, words in enumerate(features)
    )


V1, V2, V3, V4 = (" ".join(sorted(features)) for features in X86.levels.values())


def test_riscv_board_is_read() -> None:
    report = read_cpuinfo(riscv_cpus(*["rv64imafdc_zicntr_zicsr_zifencei_zihpm_zba_zbb"] * 4, mmu="sv39"))
    assert (report.family, report.xlen, report.level, report.cpus) == ("riscv", 64, None, 4)
    assert report.isa is not None
    assert report.isa.canonical == "rv64imafdc_zicntr_zicsr_zifencei_zihpm_zba_zbb"
    assert "zba" in report.features


def test_only_extensions_of_every_hart_count() -> None:
    isa = detect(riscv_cpus("rv64imafdcv_zba", "rv64imafdc_zba_zbb"))
    assert isa.canonical == "rv64imafdc_zba"
    report = read_cpuinfo(riscv_cpus("rv64imafdcv", "rv64imafdc"))
    assert any("zve64d" in note for note in report.notes)


def test_equivalent_extensions_of_harts_are_kept() -> None:
    # zkn and zks share zbkb, zbkc and zbkx.
    isa = detect(riscv_cpus("rv64i_zkn", "rv64i_zks"))
    assert isa.canonical == "rv64i_zbkb_zbkc_zbkx"
    assert parse(isa.canonical, source="cpuinfo").extensions == isa.extensions


@pytest.mark.parametrize(
    "more",
    [{"cpu_vector": "0.7.1"}, {"mvendorid": "0x5b7", "marchid": "0x0"}],
)
def test_draft_vector_hardware_has_no_v(more: dict[str, str]) -> None:
    isa = detect(riscv_cpus("rv64imafdcv_zfh", **more))
    assert isa.canonical == "rv64imafdc_zfh"
    assert isa.extensions.isdisjoint({"v", "zve32x", "zvl32b"})
    assert isa.untrusted == ("v",)


def test_newer_cores_of_the_same_vendor_keep_v() -> None:
    assert "v" in detect(riscv_cpus("rv64imafdcv", mvendorid="0x5b7", marchid="0x8000000009140d00")).extensions
    assert "v" in detect(riscv_cpus("rv64imafdcv", mvendorid="0x5b7")).extensions


def test_draft_vector_extension_is_not_reported() -> None:
    isa = detect(riscv_cpus("rv64imafdcvsu", "rv64imafdcvsu", cpu_freq="1.848Ghz", cpu_vector="0.7.1"))
    assert isa.canonical == "rv64imafdc"


def test_harts_of_different_width_are_no_machine() -> None:
    with pytest.raises(InputError) as refusal:
        detect(riscv_cpus("rv64imac", "rv32imac"))
    assert refusal.value.code == "IsaNotDetected"


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        (V1, "x86-64-v1"),
        (V2, "x86-64-v2"),
        (V3, "x86-64-v3"),
        (V4, "x86-64-v4"),
        # A hypervisor that hides fma leaves avx2 behind: v2.
        (V3.replace(" fma ", " "), "x86-64-v2"),
        # One missing flag ends the levels there, whatever is above.
        (V4.replace(" pni ", " "), "x86-64-v1"),
        (f"{V2} avx aes xsave", "x86-64-v2"),
    ],
)
def test_x86_level_stops_at_the_first_missing_flag(flags: str, level: str) -> None:
    report = read_cpuinfo(x86_cpus(flags, flags))
    assert (report.family, report.level, report.xlen) == ("x86", level, 64)
    assert report.features == tuple(sorted(flags.split()))


def test_x86_without_long_mode_has_no_level() -> None:
    report = read_cpuinfo(x86_cpus(V2.replace(" lm ", " ")))
    assert (report.family, report.xlen, report.level, report.isa) == ("x86", 32, None, None)


def test_cores_that_differ_are_intersected() -> None:
    report = read_cpuinfo(x86_cpus(V4, V3))
    assert report.level == "x86-64-v3"
    assert any("avx512f" in note for note in report.notes)


@pytest.mark.parametrize(
    ("features", "level", "canonical"),
    [
        ("fp asimd evtstrm crc32 cpuid", "armv8.0-a", "armv8.0-a+cpuid+crc32+evtstrm"),
        (" ".join(sorted(ARM.levels["armv8.2-a"])), "armv8.2-a", "armv8.2-a"),
        # Hidden features (bti, ssbs, dit) do not matter; with sve and sve2 it is armv9.0.
        (" ".join(sorted({*ARM.levels["armv8.5-a"], "sve", "sve2"})), "armv9.0-a", "armv9.0-a"),
        # Graviton 3: sve, bf16 and i8mm but no sve2.
        (" ".join(sorted({*ARM.levels["armv8.4-a"], "sve", "bf16", "i8mm"})), "armv8.4-a", "armv8.4-a+bf16+i8mm+sve"),
        (" ".join(sorted({*ARM.levels["armv8.7-a"], "sve", "sve2"})), "armv9.2-a", "armv9.2-a"),
    ],
)
def test_arm_levels_come_from_hwcaps(features: str, level: str, canonical: str) -> None:
    report = read_cpuinfo(arm_cpus(features, features))
    assert report.level == level
    assert report.isa is not None
    assert report.isa.canonical == canonical


def test_big_little_counts_common_features() -> None:
    isa = detect(arm_cpus("fp asimd crc32 aes", "fp asimd crc32"))
    assert isa.canonical == "armv8.0-a+crc32"


def test_arm_32_bit_board_has_features_and_no_isa() -> None:
    report = read_cpuinfo(arm_cpus("half thumb fastmult vfp edsp neon vfpv3 tls vfpv4 idiva idivt"))
    assert (report.family, report.xlen, report.isa) == ("arm", 32, None)
    assert "neon" in report.features


@pytest.mark.parametrize(
    ("text", "family"),
    [
        ("processor\t: 0\ncpu\t\t: POWER9, altivec supported\nclock\t\t: 3450.0MHz\n", "power"),
        ("vendor_id       : IBM/S390\n# processors    : 2\nfeatures\t: esan3 zarch stfle vx\n", "s390"),
        (
            "processor\t: 0\nCPU Family\t: Loongson-64bit\nISA\t\t: loongarch32 loongarch64\nFeatures\t: cpucfg lam\n",
            "loongarch",
        ),
    ],
)
def test_unsupported_families_have_no_isa(text: str, family: str) -> None:
    report = read_cpuinfo(text)
    assert (report.family, report.isa) == (family, None)
    with pytest.raises(InputError) as refusal:
        detect(text)
    assert refusal.value.code == "IsaNotDetected"


@pytest.mark.parametrize("text", ["", "\n\n", "hello", "isa : mips1 mips2", "processor : 0\nBogoMIPS : 1\n"])
def test_text_without_a_cpu_is_rejected(text: str) -> None:
    with pytest.raises(InputError) as refusal:
        read_cpuinfo(text)
    assert refusal.value.code == "IsaNotDetected"


def test_detected_isa_is_published_and_read_back() -> None:
    for text in (
        riscv_cpus("rv64imafdcv_zfoo"),
        x86_cpus(f"{V3} some_new_flag sha_ni"),
        arm_cpus("fp asimd sve newcap"),
    ):
        isa = detect(text)
        assert parse(isa.canonical, source="cpuinfo").extensions == isa.extensions
