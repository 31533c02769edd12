"""File trees of /proc and /sys, written from the facts of real boards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

# by board: its isa line, further lines of its cpuinfo, and the instruction set that programs may use
BOARDS: dict[str, tuple[str, dict[str, str], str]] = {
    "VisionFive 2": (
        "rv64imafdc_zicntr_zicsr_zifencei_zihpm_zba_zbb",
        {"mvendorid": "0x489", "marchid": "0x8000000000000007"},
        "rv64imafdc_zicntr_zicsr_zifencei_zihpm_zba_zbb",
    ),
    "Milk-V Pioneer": (
        "rv64imafdc_zicntr_zicsr_zifencei_zihpm",
        {"mvendorid": "0x5b7", "marchid": "0x0"},
        "rv64imafdc_zicntr_zicsr_zifencei_zihpm",
    ),
    "LicheePi 4A": (
        "rv64imafdc_zicntr_zicsr_zifencei_zihpm_xtheadvector",
        {"mvendorid": "0x5b7", "marchid": "0x0"},
        "rv64imafdc_zicntr_zicsr_zifencei_zihpm_xtheadvector",
    ),
    "LicheePi 4A, vendor kernel 5.10": ("rv64imafdcvsu", {"cpu-vector": "0.7.1"}, "rv64imafdc"),
    "T-Head C910 reference": ("rv64imafdcsu", {}, "rv64imafdc"),
    "Lichee RV": ("rv64imafdc", {}, "rv64imafdc"),
    "Kendryte K510": ("rv64i2p0m2p0a2p0f2p0d2p0c2p0xv5-0p0", {}, "rv64imafdc"),
    "JH7110 firmware": ("rv64imafdcbsux", {}, "rv64imafdc"),
    "HiFive Premier P550": (
        "rv64imafdch_zicntr_zicsr_zifencei_zihpm_zba_zbb_sscofpmf",
        {},
        "rv64imafdch_zicntr_zicsr_zifencei_zihpm_zba_zbb_sscofpmf",
    ),
    "Banana Pi F3": (
        "rv64imafdcv_zicbom_zicboz_zicntr_zicond_zicsr_zifencei_zihintpause_zihpm_zfh_zfhmin_zca_zcd_zba_zbb_zbc_zbs_zkt_"
        "zve32f_zve32x_zve64d_zve64f_zve64x_zvfh_zvfhmin_zvkt_sscofpmf_sstc_svinval_svnapot_svpbmt",
        {"mvendorid": "0x710"},
        "rva22u64_v",
    ),
    "SG2044": (
        "rv64imafdcv_zicbom_zicboz_zicntr_zicond_zicsr_zifencei_zihintntl_zihintpause_zihpm_zawrs_zfa_zfh_zfhmin_zca_zcb_"
        "zcd_zba_zbb_zbc_zbs_zve32f_zve32x_zve64d_zve64f_zve64x_zvfh_zvfhmin_sscofpmf_sstc_svinval_svnapot_svpbmt",
        {"mvendorid": "0x5b7"},
        "rv64gcv_zba_zbb_zbs_zfa_zfh",
    ),
    "QEMU virt with H and V": ("rv64imafdcvh_zba_zbb_zbc_zbs", {}, "rv64gcv_zba_zbb_zbc_zbs"),
}
# by machine: cpuinfo, family, level
OTHERS: dict[str, tuple[str, str, str | None]] = {
    "Raspberry Pi 4": ("Features : fp asimd evtstrm crc32 cpuid\nCPU implementer : 0x41\n", "arm", "armv8.0-a"),
    "Kunpeng 920": (
        "Features : fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma dcpop "
        "asimddp asimdfhm\nCPU implementer : 0x48\n",
        "arm",
        "armv8.2-a",
    ),
    "GB10": (
        "Features : fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc "
        "dcpop sha3 sm3 sm4 asimddp sha512 sve asimdfhm dit uscat ilrcpc flagm sb paca pacg dcpodp sve2 "
        "sveaes svepmull svebitperm svesha3 svesm4 flagm2 frint svei8mm svebf16 i8mm bf16 dgh bti ecv afp wfxt\n"
        "CPU implementer : 0x41\n",
        "arm",
        "armv9.2-a",
    ),
    "32-bit Arm board": ("Features : half thumb fastmult vfp edsp neon vfpv3\nCPU implementer : 0x41\n", "arm", None),
    "POWER9": ("cpu : POWER9, altivec supported\nclock : 3450.000000MHz\n", "power", "POWER9"),
}


def cpuinfo(*harts: str, **more: str) -> str:
    lines = "".join(f"{key.replace('_', '-')}\t: {value}\n" for key, value in more.items())
    return "\n".join(f"processor\t: {at}\nhart\t\t: {at}\nisa\t\t: {isa}\n{lines}" for at, isa in enumerate(harts))


def write(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files below a root; no final newline is added to texts."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def device_tree(*cpus: dict[str, str]) -> dict[str, str | bytes]:
    """Return CPU nodes of a device tree; spaces separate the strings of a property here, and NUL in the tree."""
    return {
        f"sys/firmware/devicetree/base/cpus/cpu@{at}/{name}": value.replace(" ", "\0").encode() + b"\0"
        for at, cpu in enumerate(cpus)
        for name, value in cpu.items()
    }


# as registered by Debian's qemu-user-static
MAGIC = "7f454c460201010000000000000000000200{machine}00"
MASK = "ffffffffffffff00fffffffffffffffffeffffff"


def binfmt(machine: str = "f3", interpreter: str = "/usr/bin/qemu-riscv64-static", flags: str = "POF") -> str:
    magic = MAGIC.format(machine=machine)
    return f"enabled\ninterpreter {interpreter}\nflags: {flags}\noffset 0\nmagic {magic}\nmask {MASK}\n"
