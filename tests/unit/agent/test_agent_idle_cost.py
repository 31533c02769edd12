"""Cost of the agent's periodic checks on a machine of 256 CPUs: at most a hundredth of one core."""

from __future__ import annotations

import time
from pathlib import Path

from hetsched.agent.kubelet.state import KubeletWatch
from hetsched.agent.probe_topology import probe_topology, topology_fingerprint
from hetsched.agent.probe_usage import UsageMeter
from hetsched.agent.program import POLL_SECONDS, WHOLE_SECONDS, fingerprint
from hetsched.agent.tree import Tree
from tests.unit.agent import trees
from tests.unit.agent.trees import machine, put

LOOKS = 20


class CountingTree(Tree):
    """Count the files that are opened."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.opened = 0

    def data(self, path: str, limit_bytes: int = 64 * 1024) -> bytes | None:
        self.opened += 1
        return super().data(path, limit_bytes)


def a_large_machine(root: Path) -> None:
    """A machine of 256 CPUs in 8 zones, with 40 interfaces of pods and a static kubelet with 100 pods."""
    trees.built(root, machine("sysfs", "ibm-power7-8n-256t"))
    lines = [f"cpu{cpu} {cpu}00 5 77 99999 12 0 3 9 0 0" for cpu in range(256)]
    put(root, "proc/stat", "\n".join(["cpu  1 2 3 4 5 6 7 8 9 0", *lines, "intr " + "17 " * 20_000]))
    put(root, "proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 33554432 kB")
    put(root, "proc/net/dev", "\n".join(f"  veth{i}: 1 2 0 0 0 0 0 0 3 4 0 0 0 0 0 0" for i in range(40)))
    put(root, "proc/diskstats", "\n".join(f" 8 {i} sd{i} 1 2 3 4 5 6 7 8 9 10 11" for i in range(24)))
    entries = ",".join(f'"uid-{i}":{{"main":"{i}"}}' for i in range(100))
    state = f'{{"policyName":"static","defaultCpuSet":"100-255","entries":{{{entries}}},"checksum":0}}'
    put(root, "var/lib/kubelet/cpu_manager_state", state)


def test_idle_agent_uses_a_hundredth_of_a_core(tmp_path: Path, figures: dict[str, object]) -> None:
    a_large_machine(tmp_path)
    meter, kubelet = UsageMeter(), KubeletWatch(lambda: Tree(tmp_path))
    meter.measure(Tree(tmp_path))
    kubelet.now()
    began = time.process_time()
    for _ in range(LOOKS):
        tree = Tree(tmp_path)
        fingerprint(tree)
        topology_fingerprint(tree)
        kubelet.now()
        meter.measure(tree)
    look = (time.process_time() - began) / LOOKS
    began = time.process_time()
    probe_topology(Tree(tmp_path))
    whole = time.process_time() - began
    share = look / POLL_SECONDS + whole / WHOLE_SECONDS
    figures["agent, idle looks at 256 CPUs"] = f"{1000 * look:.1f} ms each, {100 * share:.2f} % of a core"
    assert share <= 0.01


def test_check_opens_few_files(tmp_path: Path) -> None:
    a_large_machine(tmp_path)
    tree = CountingTree(tmp_path)
    kubelet = KubeletWatch(lambda: tree)
    kubelet.now()
    meter = UsageMeter()
    meter.measure(tree)
    tree.opened = 0
    topology_fingerprint(tree)
    kubelet.now()
    meter.measure(tree)
    # 6 of the topology, 4 + 6 of the kubelet's watch, 4 of the meter, and not one for each CPU
    assert tree.opened == 20
