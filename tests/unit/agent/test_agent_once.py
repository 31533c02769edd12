"""`hetsched agent --once` as a separate process: correct for this machine, in the contract's shape, and small."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hetsched.agent.command import main
from tests.unit.agent.isa_trees import cpuinfo, write

RSS_LIMIT_MIB = 55  # of 60, the rest is reserved for a driver's libraries


def agent(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hetsched.cli", "agent", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    done = agent("--once", "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    loaded: dict[str, Any] = json.loads(done.stdout)
    return loaded


def lscpu(*options: str) -> Any:
    done = subprocess.run(
        ["lscpu", *options], capture_output=True, text=True, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"}
    )
    if done.returncode:
        pytest.skip("lscpu cannot be run here")
    return json.loads(done.stdout)


def test_document_has_the_fields_of_the_contract(report: dict[str, Any]) -> None:
    fields = {"node", "isa", "zones", "cpus", "gpus", "kubelet", "usage", "problems"}
    assert fields <= report.keys()
    assert {"family", "canonical", "sources", "emulated"} <= report["isa"].keys()
    assert ("extensions" in report["isa"]) or {"level", "features"} <= report["isa"].keys()
    assert report["node"] == os.uname().nodename.lower()
    for part in ("zones", "cpus", "gpus", "kubelet", "usage"):
        assert report[part] is not None or report["problems"], part


def test_features_equal_the_flags_of_lscpu(report: dict[str, Any]) -> None:
    rows = {row["field"]: row["data"] for row in lscpu("-J")["lscpu"]}
    if report["isa"]["family"] not in ("x86", "arm"):
        pytest.skip("lscpu lists flags on x86 and Arm only")
    assert set(report["isa"]["features"]) == set(rows["Flags:"].split())
    architecture = {"x86": "x86_64", "arm": "aarch64"}[report["isa"]["family"]]
    assert rows["Architecture:"] == architecture


def test_no_second_source_contradicts_the_kernel(report: dict[str, Any]) -> None:
    assert [source["conflict"] for source in report["isa"]["sources"]] == [None] * len(report["isa"]["sources"])
    assert report["isa"]["sources"][0]["source"] == "/proc/cpuinfo"
    assert len(report["isa"]["sources"]) > 1


def test_cpus_cores_sockets_and_zones_are_lscpus(report: dict[str, Any]) -> None:
    rows = lscpu("-J", "-e=CPU,SOCKET,NODE,ONLINE")["cpus"]
    ours = {cpu["id"]: cpu for cpu in report["cpus"]}
    assert ours.keys() == {int(row["cpu"]) for row in rows}
    for row in rows:
        cpu = ours[int(row["cpu"])]
        if row.get("online") in (True, "yes"):
            assert cpu["socket"] == int(row["socket"])
            assert cpu["zone"] == int(row.get("node") or 0)
    assert sum(cpu["online"] for cpu in report["cpus"]) == os.cpu_count()


def test_memory_equals_that_of_the_kernel(report: dict[str, Any]) -> None:
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    assert report["memoryMiB"] == int(total.split()[1]) // 1024


def test_root_option_reads_another_machines_tree(tmp_path: Path) -> None:
    write(tmp_path, {"proc/cpuinfo": cpuinfo("rv64imafdcv", "rv64imafdcv"), "etc/hostname": "Board-1\n"})
    done = agent("--once", "-o", "json", "--root", tmp_path)
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["node"], answer["isa"]["canonical"]) == (0, "board-1", "rv64imafdcv")
    assert "v" in answer["isa"]["extensions"]
    assert "level" not in answer["isa"]
    unknown = json.loads(agent("--once", "-o", "json", "--root", tmp_path, "--node", "n7").stdout)
    assert (unknown["node"], unknown["zones"], unknown["gpus"]) == ("n7", None, None)
    assert {"CpusUnknown", "CardsUnknown"} <= {problem["code"] for problem in unknown["problems"]}


def test_people_read_text_that_no_file_can_spoil(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, {"proc/cpuinfo": cpuinfo("rv64imac\x1b[31m"), "etc/hostname": "a\x1b]0;x\x07b"})
    assert main(["--once", "--root", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "ISA" in shown
    assert "problem" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--root", "/nonexistent"), "FileUnusable"),
        (("--nvidia-smi", "/nonexistent.xml"), "FileUnusable"),
        (("--output", "yaml"), "invalid choice"),
        (("--bogus",), "unrecognized"),
    ],
)
def test_invalid_options_are_reported_once(arguments: tuple[str, ...], message: str) -> None:
    done = agent("--once", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_agent_memory_is_bounded_with_grpc_and_nvml(figures: dict[str, object]) -> None:
    script = """
import sys
from pathlib import Path
from hetsched.agent import command, cri, machine, program
from hetsched.agent.gpus import probe
from hetsched.agent.kubelet import podresources
import grpc, pynvml
from hetsched.agent.tree import Tree
machine.read_machine(Tree(), node="n")
too_much = {"django", "numpy", "typer", "rich", "yaml", "httpx", "kubernetes", "hetsched.engine"} & set(sys.modules)
rows = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(sorted(too_much), rows["VmRSS"].split()[0])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    loaded, _, kibibytes = done.stdout.strip().rpartition(" ")
    figures["agent, memory with gRPC and NVML loaded"] = f"{int(kibibytes) / 1024:.1f} MiB"
    assert loaded == "[]"
    assert int(kibibytes) / 1024 <= RSS_LIMIT_MIB


def test_agent_command_does_not_load_other_commands() -> None:
    script = (
        "import sys; sys.argv[1:] = ['agent', '--once']; from hetsched.cli.__main__ import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(sorted({'typer', 'rich', 'hetsched.cli.main', 'hetsched.adapters'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "[]"
