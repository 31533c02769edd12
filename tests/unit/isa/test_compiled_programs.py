"""Programs of real compilers for RISC-V, Arm and x86, one by one and as a folder."""

from __future__ import annotations

import json
import os
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hetsched.adapters.oci.inspection import inspect_bytes, inspect_path
from hetsched.cli.isa.command import app
from hetsched.contracts.errors import InputError
from hetsched.isa import match, parse
from hetsched.isa.elf import inspect_elf
from hetsched.isa.union import joint_requirement

LOOP = "void _start(void) { for (;;) ; }\n"
RISCV = pytest.mark.needs("riscv64-linux-gnu-gcc")
ARM = pytest.mark.needs("aarch64-linux-gnu-gcc")
X86 = pytest.mark.needs("gcc")


def built(folder: Path, compiler: str, *options: str, code: str = LOOP, name: str = "program") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / f"{name}.c"
    source.write_text(code)
    output = folder / name
    command = [compiler, *options, "-nostdlib", "-static", "-o", str(output), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    source.unlink()
    return output


def inspect(file: Path, *options: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["inspect", str(file), "-o", "json", *options])
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@RISCV
@pytest.mark.parametrize(
    ("march", "fits", "lacks"),
    [
        ("rv64gc", "rv64gc", "rv64imac"),
        ("rv64imac", "rv64imac", "rv64im"),
        ("rv64gcv", "rv64gcv", "rv64gc_zba_zbb_zbs"),
        ("rv64gc_zba_zbb_zbs", "rv64gc_zba_zbb_zbs", "rv64gc_zba_zbb"),
        ("rv64gcv_zba_zbb_zfh", "rv64gcv_zba_zbb_zbs_zfh", "rv64gcv_zba_zbb"),
    ],
)
def test_riscv_program_needs_its_build_target(tmp_path: Path, march: str, fits: str, lacks: str) -> None:
    abi = "lp64d" if march.startswith("rv64gc") else "lp64"
    answer = inspect(built(tmp_path, "riscv64-linux-gnu-gcc", f"-march={march}", f"-mabi={abi}"))
    assert (answer["machine"], answer["bits"], answer["evidence"]) == ("riscv", 64, "Tag_RISCV_arch")
    need = parse(answer["requirement"])
    assert match(need, parse(fits, source="node-label")).satisfied
    assert not match(need, parse(lacks, source="node-label")).satisfied


@RISCV
def test_riscv_program_without_sections_is_read_by_segments(tmp_path: Path) -> None:
    program = built(tmp_path, "riscv64-linux-gnu-gcc", "-march=rv64gcv", "-mabi=lp64d")
    subprocess.run(["riscv64-linux-gnu-strip", str(program)], check=True)
    assert "v" in parse(inspect(program)["requirement"]).extensions
    subprocess.run(["riscv64-linux-gnu-objcopy", "--remove-section=.riscv.attributes", str(program)], check=True)
    # Without the attribute only the header's flags remain: compressed, floating point of double width.
    data = program.read_bytes()
    assert inspect_elf(data).evidence in ("e_flags", "Tag_RISCV_arch")
    assert {"c", "d"} <= parse(inspect_elf(data).requirement or "").extensions


@ARM
@pytest.mark.parametrize("march", ["armv8-a", "armv8.2-a+sve"])
def test_arm_64_bit_program_requires_its_machine_only(tmp_path: Path, march: str) -> None:
    answer = inspect(built(tmp_path, "aarch64-linux-gnu-gcc", f"-march={march}"))
    assert (answer["machine"], answer["requirement"], answer["evidence"]) == ("aarch64", "armv8.0-a", "ELF header")


@X86
@pytest.mark.parametrize(
    ("march", "level"),
    [("x86-64", "x86-64-v1"), ("x86-64-v2", "x86-64-v2"), ("x86-64-v3", "x86-64-v3"), ("x86-64-v4", "x86-64-v4")],
)
def test_x86_program_requires_the_level_of_its_notes(tmp_path: Path, march: str, level: str) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("the compiler here builds for another machine")
    answer = inspect(built(tmp_path, "gcc", f"-march={march}", "-mneeded"))
    assert answer["requirement"] == level


@X86
def test_hints_name_occurring_instructions_and_require_nothing(tmp_path: Path) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("the compiler here builds for another machine")
    code = (
        'void _start(void) { for (;;) __asm__ volatile ("vpaddd %ymm0, %ymm1, %ymm2\\n\\tpdep %rax, %rbx, %rcx"); }\n'
    )
    answer = inspect(built(tmp_path, "gcc", "-march=x86-64", code=code), "--hints")
    assert answer["requirement"] == "x86-64-v1"
    assert answer["hints"]["certain"] is False
    assert answer["hints"]["instructions"] == {"avx2": 1, "bmi2": 1}


@X86
def test_program_without_such_instructions_has_a_text(tmp_path: Path) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("the compiler here builds for another machine")
    program = built(tmp_path, "gcc", "-march=x86-64")
    text = " ".join(CliRunner().invoke(app, ["inspect", "--hints", str(program)]).stdout.split())
    assert "no instructions of optional features (by " in text
    assert "False" not in text


@RISCV
def test_riscv_programs_have_hints(tmp_path: Path) -> None:
    code = (
        'void _start(void) { for (;;) __asm__ volatile ("vsetivli zero, 1, e8, m1, ta, ma\\n\\tsh1add a0, a0, a0"); }\n'
    )
    options = ("-march=rv64gcv_zba", "-mabi=lp64d")
    answer = inspect(built(tmp_path, "riscv64-linux-gnu-gcc", *options, code=code), "--hints")
    assert answer["hints"]["instructions"] == {"v": 1, "zba": 1}


@RISCV
@ARM
def test_folder_needs_the_union_of_its_programs(tmp_path: Path) -> None:
    riscv = "riscv64-linux-gnu-gcc"
    built(tmp_path / "bin", riscv, "-march=rv64gcv", "-mabi=lp64d", name="vector")
    built(tmp_path / "lib/deep", riscv, "-march=rv64gc_zbb", "-mabi=lp64d", name="bits")
    built(tmp_path / "bin", "aarch64-linux-gnu-gcc", name="arm")
    (tmp_path / "bin/script").write_text("#!/bin/sh\n")
    (tmp_path / "bin/broken").write_bytes(b"\x7fELF\x02\x01")
    (tmp_path / "bin/out").symlink_to("/bin/sh")
    os.mkfifo(tmp_path / "bin/pipe")
    answer = inspect(tmp_path)
    assert answer["format"] == "directory"
    assert answer["requirements"].keys() == {"arm64", "riscv64"}
    assert {"v", "zbb", "c"} <= parse(answer["requirements"]["riscv64"]).extensions
    assert [program["file"] for program in answer["programs"]] == ["bin/arm", "bin/vector", "lib/deep/bits"]
    assert [problem.partition(":")[0] for problem in answer["problems"]] == ["bin/broken"]


@RISCV
def test_bytes_and_files_are_inspected_alike(tmp_path: Path) -> None:
    program = built(tmp_path, "riscv64-linux-gnu-gcc", "-march=rv64gcv", "-mabi=lp64d")
    assert inspect_bytes(program.read_bytes()).requirement == inspect_path(program).requirement
    assert inspect_path(program).requirements.keys() == {"riscv64"}


@pytest.mark.parametrize("data", [b"", b"text", b"\x7fELF", b"\x1f\x8bnothing", bytes(600)])
def test_invalid_bytes_are_rejected(data: bytes) -> None:
    with pytest.raises(InputError):
        inspect_bytes(data)


def test_needs_are_joined_within_one_machine_only() -> None:
    assert joint_requirement(["x86-64-v2", "x86-64-v3", "x86-64-v2"]) == "x86-64-v3"
    assert joint_requirement(["rv64imac", "rv64im_zba"]) == "rv64imac_zba"
    assert joint_requirement(["rv64i_v0p7", "rv64i_m"]) == "rv64i_m_v0p7"
    assert joint_requirement(["armv8.0-a", None]) is None
    assert joint_requirement([]) is None
    with pytest.raises(InputError):
        joint_requirement(["rv64gc", "x86-64-v1"])


def test_32_bit_arm_program_has_its_build_target() -> None:
    # Tag_CPU_name "7-A", Tag_CPU_arch 10 (v7), its profile A, Tag_FP_arch 5 (VFPv4), Tag_Advanced_SIMD_arch 2.
    entries = bytes([5]) + b"7-A\0" + bytes([6, 10, 7, ord("A"), 10, 5, 12, 2])
    block = bytes([1]) + struct.pack("<I", 5 + len(entries)) + entries
    section = b"A" + struct.pack("<I", 4 + len(b"aeabi\0") + len(block)) + b"aeabi\0" + block
    header = b"\x7fELF\x01\x01\x01" + bytes(9)
    header += struct.pack("<HHIIIIIHHHHHH", 2, 40, 1, 0, 0, 52, 0x5000400, 52, 32, 0, 40, 1, 0)
    table = struct.pack("<IIIIIIIIII", 0, 0x7000_0003, 0, 0, 92, len(section), 0, 0, 1, 0)
    need = inspect_elf(header + table + section)
    assert (need.machine, need.requirement, need.arch_attribute) == ("arm", None, "armv7-a+vfpv4+neon")
