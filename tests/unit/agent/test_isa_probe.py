"""The instruction set of a machine from all sources: real boards, odd firmware, contradictions."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import UNSET

from hetsched.agent.isa.probe import probe_isa
from hetsched.agent.tree import Tree
from hetsched.contracts.messages.agent_report import MachineIsa
from hetsched.isa import match, parse
from tests.unit.agent.isa_trees import BOARDS, OTHERS, cpuinfo, device_tree, write

VISIONFIVE = "rv64imafdc_zicntr_zicsr_zifencei_zihpm_zba_zbb"


def probed(root: Path, files: dict[str, str | bytes]) -> tuple[MachineIsa, list[str]]:
    tree = Tree(write(root, files))
    found = probe_isa(tree)
    return found, [problem.code for problem in tree.problems]


@pytest.mark.parametrize("board", BOARDS)
def test_riscv_board_has_its_extensions_and_no_draft(tmp_path: Path, board: str) -> None:
    string, more, runs = BOARDS[board]
    found, _ = probed(tmp_path, {"proc/cpuinfo": cpuinfo(string, string, **more)})
    assert found.family == "riscv"
    assert found.canonical is not None
    assert match(parse(runs), parse(found.canonical, source="cpuinfo")).satisfied
    vectors = "v" in parse(runs).extensions
    assert found.extensions is not UNSET
    assert ("v" in found.extensions) is vectors
    assert found.level is UNSET
    assert [source.text for source in found.sources] == [string]


@pytest.mark.parametrize("machine", OTHERS)
def test_x86_and_arm_machines_have_level_and_features(tmp_path: Path, machine: str) -> None:
    text, family, level = OTHERS[machine]
    found, problems = probed(tmp_path, {"proc/cpuinfo": f"processor : 0\n{text}"})
    assert (found.family, found.level) == (family, level)
    assert found.features
    assert found.extensions is UNSET
    outside = machine in ("32-bit Arm board", "POWER9")
    assert (found.canonical is None, problems) == ((True, ["IsaUnknown"]) if outside else (False, []))


def test_features_that_differ_between_cpus_are_reported_and_left_out(tmp_path: Path) -> None:
    found, problems = probed(tmp_path, {"proc/cpuinfo": cpuinfo("rv64imafdcv_zba", "rv64imafdc_zba")})
    assert found.canonical == "rv64imafdc_zba"
    assert problems == ["IsaDiffersBetweenCpus"]


def test_code_of_a_difference_does_not_depend_on_the_names_of_features(tmp_path: Path) -> None:
    _, problems = probed(tmp_path, {"proc/cpuinfo": cpuinfo("rv64imafdc_xbelieved", "rv64imafdc")})
    assert problems == ["IsaDiffersBetweenCpus"]


def test_draft_vectors_are_ignored_and_their_device_tree_is_reported(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {"proc/cpuinfo": cpuinfo("rv64imafdcv", mvendorid="0x5b7", marchid="0x0")}
    files |= device_tree({"riscv,isa": "rv64imafdcv"})
    found, problems = probed(tmp_path, files)
    assert found.canonical == "rv64imafdc"
    assert set(problems) == {"IsaNotBelieved"}
    (firmware,) = (source for source in found.sources if source.source.startswith("device tree"))
    assert firmware.conflict is not None
    assert "names v " in firmware.conflict


def test_firmware_with_fewer_features_than_the_kernel_is_reported(tmp_path: Path) -> None:
    # The firmware's b is the draft one; its s, u and x are old marks.
    files = device_tree({"riscv,isa": "rv64imafdcbsux"})
    found, _ = probed(tmp_path, files | {"proc/cpuinfo": cpuinfo(VISIONFIVE)})
    assert found.canonical == VISIONFIVE
    assert found.sources[1].conflict == "it does not name zba zbb"


def test_sources_that_agree_are_shown_without_conflict(tmp_path: Path) -> None:
    exact = {"riscv,isa-base": "rv64i", "riscv,isa-extensions": "i m a f d c zba zbb zicntr zicsr zifencei zihpm"}
    found, problems = probed(tmp_path, device_tree(exact, exact) | {"proc/cpuinfo": cpuinfo(VISIONFIVE)})
    assert [(source.source, source.conflict) for source in found.sources] == [
        ("/proc/cpuinfo", None),
        ("device tree riscv,isa-extensions", None),
    ]
    assert problems == []


def test_exact_device_tree_list_replaces_missing_cpuinfo(tmp_path: Path) -> None:
    first = {"riscv,isa-base": "rv64i", "riscv,isa-extensions": "i m a c zba zbb", "riscv,isa": "rv64imac"}
    second = {"riscv,isa-base": "rv64i", "riscv,isa-extensions": "i m a c zba", "riscv,isa": "rv64imac"}
    found, problems = probed(tmp_path, device_tree(first, second))
    assert (found.family, found.canonical) == ("riscv", "rv64imac_zba")
    assert problems == ["IsaSourceMissing", "IsaFromSecondSource"]


def test_disabled_cpu_is_ignored(tmp_path: Path) -> None:
    # The monitor core of FU740 has neither floating point nor an MMU, and Linux never runs there.
    cpus = ({"riscv,isa": "rv64imac", "status": "disabled"}, {"riscv,isa": "rv64imafdc", "status": "okay"})
    found, _ = probed(tmp_path, device_tree(*cpus))
    assert found.canonical == "rv64imafdc"


def test_device_tree_under_proc_is_read(tmp_path: Path) -> None:
    write(tmp_path, device_tree({"riscv,isa": "rv64imafdc"}))
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/device-tree").symlink_to("/sys/firmware/devicetree/base")
    found, _ = probed(tmp_path, {})
    assert found.canonical == "rv64imafdc"


@pytest.mark.parametrize(
    "text", ["", "processor : 0\n", "isa : rv\n", "flags : \n", "isa : rv64imac\n\nisa : rv32imac\n"]
)
def test_unrecognised_text_leaves_the_machine_unknown(tmp_path: Path, text: str) -> None:
    found, problems = probed(tmp_path, {"proc/cpuinfo": text})
    assert (found.family, found.canonical) == (None, None)
    assert problems[-1] == "IsaUnknown"


def test_root_option_does_not_read_this_machine(tmp_path: Path) -> None:
    found, _ = probed(tmp_path, {"proc/cpuinfo": cpuinfo(VISIONFIVE)})
    assert [source.source for source in found.sources] == ["/proc/cpuinfo"]
    assert (found.emulated, found.cross) == ((), ())
