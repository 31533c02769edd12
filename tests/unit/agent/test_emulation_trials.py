"""Emulators are tested with tiny programs, and compared with real ones."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from hetsched.agent.isa import trials
from hetsched.agent.isa.emulation import probe_emulation
from hetsched.agent.isa.probe import probe_isa
from hetsched.agent.tree import Tree
from hetsched.contracts.messages.agent_report import AgentReport
from hetsched.isa import match, parse
from hetsched.isa.elf import inspect_elf
from tests.unit.agent.isa_trees import binfmt, write

QEMU = "/usr/bin/qemu-riscv64-static"
BINFMT = "proc/sys/fs/binfmt_misc"
# name -> the program's one instruction, as the assembler writes it
PROGRAMS = {
    "rv64gc": "add a0, a0, a0",
    "rv64gcv": "vsetivli zero, 1, e8, m1, ta, ma",
    "rv64gc_zba": "sh1add a0, a0, a0",
    "rv64gc_zbb": "cpop a0, a0",
    "rv64gc_zbs": "bset a0, a0, a0",
    "rv64gc_zfh": "fadd.h fa0, fa0, fa0",
    "rv64gc_zknd": "aes64ds a0, a0, a0",
}
needs_qemu = pytest.mark.needs("qemu-riscv64-static", "riscv64-linux-gnu-gcc")


def built(folder: Path, march: str, instruction: str) -> Path:
    """Cross-compile a static program of one instruction and exit(0)."""
    source, program = folder / f"{march}.s", folder / march
    exits = "li a7, 93\nli a0, 0\necall\n"
    source.write_text(f".globl _start\n_start:\n{instruction}\n{exits}")
    compiler = [shutil.which("riscv64-linux-gnu-gcc") or "", f"-march={march}", "-mabi=lp64d", "-nostdlib", "-static"]
    subprocess.run([*compiler, "-o", str(program), str(source)], check=True, capture_output=True)
    return program


@needs_qemu
def test_agent_predicts_which_programs_qemu_runs(tmp_path: Path) -> None:
    offered = trials.emulated_isa(QEMU, "riscv64")
    assert offered is not None
    ran = {}
    for march, instruction in PROGRAMS.items():
        program = built(tmp_path, march, instruction)
        requirement = inspect_elf(program.read_bytes()).requirement
        assert requirement is not None
        done = subprocess.run([QEMU, str(program)], cwd=tmp_path, capture_output=True, env={})
        ran[march] = done.returncode == 0
        assert ran[march] is match(parse(requirement), offered).satisfied
        assert ran[march] or done.returncode == -4  # an illegal instruction
    # The test distinguishes only if some programs run and some do not.
    assert set(ran.values()) == {True, False}


@needs_qemu
def test_trial_programs_contain_their_named_instructions(tmp_path: Path) -> None:
    # Instructions that this assembler does not know are left out; it knows most.
    source = Path(trials.__file__).read_text()
    said = dict(re.findall(r'^    "(\w+)": \(.*\),  # (.*)$', source, re.MULTILINE))
    assert said.keys() == trials.RISCV.keys()
    checked = 0
    for name, instructions in said.items():
        march = f"rv64gc{name}" if name == "v" else f"rv64gc_{name}"
        code = assembled(tmp_path, march, instructions.replace("; ", "\n"))
        if code is not None:
            assert code == trials._pack_words(trials.RISCV[name]), name
            checked += 1
    assert checked >= 12


def assembled(folder: Path, march: str, text: str) -> bytes | None:
    (folder / "trial.s").write_text(f".option norvc\n{text}\n")
    done = subprocess.run(
        ["riscv64-linux-gnu-gcc", f"-march={march}", "-c", "trial.s", "-o", "trial.o"], cwd=folder, capture_output=True
    )
    if done.returncode:
        return None
    copy = ["riscv64-linux-gnu-objcopy", "-O", "binary", "-j", ".text", "trial.o", "trial.bin"]
    subprocess.run(copy, cwd=folder, check=True)
    return (folder / "trial.bin").read_bytes()


@needs_qemu
def test_slowdown_is_relative_to_native_execution() -> None:
    cost = trials.slowdown(QEMU, "riscv64")
    native = os.uname().machine in ("x86_64", "aarch64", "riscv64")
    assert (cost is not None) is native
    assert cost is None or cost > 0


@needs_qemu
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_x86_and_arm_emulators_report_their_features(machine: str) -> None:
    isa = trials.emulated_isa(f"/usr/bin/qemu-{machine}-static", machine)
    assert isa is not None
    # QEMU 7.2 and later show their largest model by default.
    least = {"x86_64": "x86-64-v3", "aarch64": "armv8.2-a+sve"}[machine]
    assert match(parse(least), isa).satisfied


def test_program_that_is_no_emulator_is_rejected() -> None:
    for machine in ("riscv64", "aarch64", "x86_64"):
        assert trials.emulated_isa("/bin/false", machine) is None
        assert trials.emulated_isa("/bin/true", machine) is None  # it exits with 0 and runs nothing
        assert trials.slowdown("/bin/false", machine) is None


def test_untried_emulator_offers_its_minimum_at_unknown_cost(tmp_path: Path) -> None:
    tree = Tree(write(tmp_path, {f"{BINFMT}/status": "enabled\n", f"{BINFMT}/qemu-riscv64": binfmt()}))
    (offer,) = probe_emulation(tree)
    assert (offer.by, offer.version, offer.slowdown) == (QEMU, None, None)
    assert match(parse("rv64gc_zba_zbb_zbs"), parse(offer.isa)).satisfied
    assert not match(parse("rv64gcv"), parse(offer.isa)).satisfied
    assert [problem.code for problem in tree.problems] == ["EmulatorNotTried"]


@pytest.mark.parametrize(
    ("status", "entry"),
    [
        ("disabled\n", binfmt()),
        ("enabled\n", binfmt().replace("enabled", "disabled", 1)),
        ("enabled\n", binfmt(flags="PO")),  # without F no container has the interpreter
        ("enabled\n", binfmt(machine="28")),  # 32-bit Arm
    ],
)
def test_entry_without_container_support_offers_nothing(tmp_path: Path, status: str, entry: str) -> None:
    tree = Tree(write(tmp_path, {f"{BINFMT}/status": status, f"{BINFMT}/qemu-riscv64": entry}))
    assert probe_emulation(tree) == ()


def test_broken_entry_is_reported_and_the_others_are_kept(tmp_path: Path) -> None:
    write(tmp_path, {f"{BINFMT}/status": "enabled\n", f"{BINFMT}/qemu-riscv64": binfmt()})
    tree = Tree(write(tmp_path, {f"{BINFMT}/a": "nothing\n", f"{BINFMT}/b": b"\xff\x00"}))
    assert len(probe_emulation(tree)) == 1
    assert [problem.code for problem in tree.problems][:2] == ["BinfmtMalformed", "FileNotText"]


def test_cross_toolchain_is_reported_by_its_target(tmp_path: Path) -> None:
    names = ("riscv64-unknown-linux-gnu-gcc", "aarch64-linux-gnu-gcc", "riscv64-unknown-linux-gnu-ld", "notes.txt")
    tree = Tree(write(tmp_path, {f"opt/RISCV/bin/{name}": "" for name in names}))
    assert probe_isa(tree).cross == ("armv8.0-a", "rv64imafdc_zicsr_zifencei")
    assert [problem.code for problem in tree.problems].count("ToolchainNotAsked") == 2


@needs_qemu
@pytest.mark.parametrize("seen", [True, False], ids=["interpreter", "as in a container"])
def test_kernel_with_the_entry_runs_the_reported_programs(tmp_path: Path, seen: bool) -> None:
    """A user namespace has its own binfmt_misc since Linux 6.7, so the machine is not changed."""
    runs, breaks = (
        built(tmp_path, "rv64gc_zba", PROGRAMS["rv64gc_zba"]),
        built(tmp_path, "rv64gcv", PROGRAMS["rv64gcv"]),
    )
    entry = r":qemu-riscv64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xf3\x00:"
    entry += r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:" + f"{QEMU}:OCF"
    # A container has no interpreter of the machine: here its file is covered by another one.
    hidden = "" if seen else f"mount --bind /dev/null {QEMU}"
    script = f"""
        mount -t binfmt_misc none /proc/sys/fs/binfmt_misc || exit 77
        echo '{entry}' > /proc/sys/fs/binfmt_misc/register || exit 77
        {hidden}
        cd {tmp_path}; {runs} >&2; echo $? > runs; {breaks} >&2; echo $? > breaks
        cd {Path.cwd()} && {sys.executable} -m hetsched.agent --once -o json
    """
    inside = ["unshare", "--user", "--map-root-user", "--mount", "bash", "-c", script]
    done = subprocess.run(inside, capture_output=True, timeout=120)
    if done.returncode in (1, 77) and not (tmp_path / "runs").exists():
        pytest.skip(f"no separate binfmt_misc here: {done.stderr.decode()[:200]}")
    report = msgspec.json.decode(done.stdout, type=AgentReport)
    (offer,) = report.isa.emulated
    # The slowdown is not compared: on a busy machine the agent reports it as unknown.
    assert (offer.by, offer.version is not None) == (QEMU, seen)
    for program, file in ((runs, "runs"), (breaks, "breaks")):
        requirement = inspect_elf(program.read_bytes()).requirement
        assert requirement is not None
        # 132 = 128 + SIGILL
        expected = "0" if match(parse(requirement), parse(offer.isa)).satisfied else "132"
        assert (tmp_path / file).read_text().strip() == expected
