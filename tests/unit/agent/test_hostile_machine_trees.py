"""Wrong, broken or hostile machine trees cause no escape, hang or crash."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from itertools import count
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetsched.agent.isa.probe import MAX_CPUINFO_BYTES
from hetsched.agent.machine import MAX_PROBLEMS, read_machine
from hetsched.agent.probe_usage import UsageMeter
from hetsched.agent.tree import Tree
from hetsched.contracts.messages.agent_report import AgentReport
from tests.unit.agent.isa_trees import binfmt, cpuinfo, device_tree, write

SECRET = "the secret of another folder"
BINFMT = "proc/sys/fs/binfmt_misc"
CPU, NODE, PCI = "sys/devices/system/cpu", "sys/devices/system/node", "sys/bus/pci/devices/0000:01:00.0"
# Every kind of file that a probe reads.
FILES: dict[str, str | bytes] = {
    "proc/cpuinfo": cpuinfo("rv64imafdcv_zba", "rv64imafdc_zba"),
    "proc/meminfo": "MemTotal: 16384000 kB\n",
    "proc/stat": "cpu 1 2 3 4 5 6 7 8 9 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n",
    "proc/sys/kernel/hostname": "node-1\n",
    f"{BINFMT}/status": "enabled\n",
    f"{BINFMT}/qemu-riscv64": binfmt(),
    "opt/RISCV/bin/riscv64-unknown-linux-gnu-gcc": "",
    f"{CPU}/online": "0-1\n",
    f"{CPU}/possible": "0-1\n",
    f"{CPU}/present": "0-1\n",
    f"{CPU}/cpu0/topology/core_cpus_list": "0\n",
    f"{CPU}/cpu0/topology/thread_siblings_list": "0\n",
    f"{CPU}/cpu0/topology/physical_package_id": "0\n",
    f"{CPU}/cpu0/cache/index0/level": "1\n",
    f"{CPU}/cpu0/cache/index0/shared_cpu_list": "0\n",
    f"{CPU}/cpu1/topology/core_cpus_list": "1\n",
    f"{CPU}/cpu1/online": "1\n",
    f"{NODE}/online": "0\n",
    f"{NODE}/node0/cpulist": "0-1\n",
    f"{NODE}/node0/distance": "10\n",
    f"{NODE}/node0/meminfo": "Node 0 MemTotal: 16384000 kB\n",
    f"{NODE}/node0/hugepages/hugepages-2048kB/nr_hugepages": "0\n",
    f"{PCI}/class": "0x030200\n",
    f"{PCI}/vendor": "0x10de\n",
    f"{PCI}/device": "0x20b0\n",
    f"{PCI}/numa_node": "0\n",
    "var/lib/kubelet/config.yaml": "cpuManagerPolicy: static\nreservedSystemCPUs: '0'\n",
    "var/lib/kubelet/cpu_manager_state": '{"policyName":"static","defaultCpuSet":"0-1","checksum":1}',
    "var/lib/kubelet/memory_manager_state": '{"policyName":"None","checksum":1}',
}
FILES |= device_tree({"riscv,isa": "rv64imafdc", "riscv,isa-base": "rv64i", "riscv,isa-extensions": "i m a"})
HUGE = 1 << 30


def read(root: Path) -> AgentReport:
    """Probe the tree, and check the invariants of all trees."""
    tree = Tree(root)
    meter = UsageMeter(clock=map(float, count()).__next__)  # the second sample needs no waiting
    meter.measure(tree)
    meter.measure(tree)
    report = read_machine(tree, node="n", meter=meter)
    encoded = msgspec.json.encode(report)
    assert SECRET.encode() not in encoded
    assert msgspec.json.decode(encoded, type=AgentReport) == report
    assert len(report.problems) <= MAX_PROBLEMS + 1
    return report


def test_empty_tree_reports_why_nothing_is_known(tmp_path: Path) -> None:
    report = read(tmp_path)
    assert (report.isa.canonical, report.zones, report.gpus, report.memory_mib) == (None, None, None, None)
    codes = {problem.code for problem in report.problems}
    assert {"IsaUnknown", "CpusUnknown", "CardsUnknown", "MemoryUnknown"} <= codes


@pytest.mark.parametrize("name", FILES)
def test_files_neither_leave_the_tree_nor_block(tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.write_text(SECRET)
    root = tmp_path / "root"
    harms = {
        "link": lambda path: path.symlink_to(outside),
        "dots": lambda path: path.symlink_to("../" * 30 + str(outside)),
        "circle": lambda path: path.symlink_to(path.name),
        "pipe": os.mkfifo,
        "folder": Path.mkdir,
        "huge": lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), HUGE),
        "binary": lambda path: path.write_bytes(bytes(range(256)) * 64),
        "zero": lambda path: path.symlink_to("/dev/zero"),
    }
    path = write(root, FILES) / name
    for harm in harms.values():
        path.unlink()
        harm(path)
        begun = time.monotonic()
        read(root)
        assert time.monotonic() - begun < 20  # a blocking read would never return
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
            path.touch()


@pytest.mark.parametrize("folder", ["proc", "sys", f"{CPU}/cpu0", NODE, BINFMT, "sys/firmware/devicetree/base/cpus"])
def test_folders_do_not_leave_the_tree(tmp_path: Path, folder: str) -> None:
    root = write(tmp_path / "root", FILES)
    elsewhere = write(
        tmp_path / "elsewhere", {"cpuinfo": SECRET, "status": SECRET, "cpulist": SECRET, "online": SECRET}
    )
    shutil.rmtree(root / folder)
    (root / folder).symlink_to(elsewhere)
    read(root)


def test_folder_listing_is_bounded(tmp_path: Path) -> None:
    write(tmp_path, FILES)
    for at in range(3000):
        (tmp_path / "sys/firmware/devicetree/base/cpus" / f"cpu@{at:x}").mkdir(exist_ok=True)
        (tmp_path / BINFMT / f"entry-{at}").write_text(binfmt())
    report = read(tmp_path)
    assert {"DeviceTreeTooLarge", "TooManyBinfmtEntries"} <= {problem.code for problem in report.problems}


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"isa:rv64imac_x{at}\n\n" for at in range(200_000)),
        "".join(f"flags:lm a{at}\n\n" for at in range(200_000)),
        "flags:lm " + "".join(f"a{at} " for at in range(500_000)),
    ],
    ids=["harts", "cores", "features"],
)
def test_machine_with_too_many_cpu_kinds_is_rejected(tmp_path: Path, text: str) -> None:
    report = read(write(tmp_path, {"proc/cpuinfo": text[:MAX_CPUINFO_BYTES]}))
    assert report.isa.canonical is None
    assert len(msgspec.json.encode(report)) < 100_000


# Typical content of such files, slightly damaged, in addition to random bytes.
PIECES = st.sampled_from(
    ["rv64", "imafdcv", "_zba", "_", "su", "0p7", "isa", ":", "\n", "processor", "flags", "lm sse2", "Features",
     "0-7", "0,2-", "4294967296", "-1", "1" * 400, "enabled", "interpreter /bin/sh", "flags: F", "magic ", "{", "}",
     "7f454c46", '"policyName"', "MemTotal: ", "kB", "0x10de", "\x00", "\u0660", "é", "hart isa", "cpu-vector : 0.7.1"]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=12).map("".join).map(lambda text: text.encode("utf-8", "replace"))


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(sorted(FILES)), st.one_of(TEXTS, st.binary(max_size=200)), max_size=8))
def test_any_file_content_gives_a_report(broken: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        read(write(Path(folder), FILES | broken))
