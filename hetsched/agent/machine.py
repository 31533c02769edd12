"""Everything that can be read of one machine, in one document.

Rule: each probe reads its own part and says in the tree's problems what it could not read; none can spoil another's.
"""

from __future__ import annotations

import os

from hetsched import __version__
from hetsched.agent.probe_cards import probe_cards
from hetsched.agent.probe_isa import probe_isa
from hetsched.agent.probe_topology import probe_topology
from hetsched.agent.tree import Tree
from hetsched.contracts.agent_report import AgentReport, MachineProblem

MAX_PROBLEMS = 200


def read_machine(tree: Tree, *, node: str = "", nvidia_smi: bytes | None = None) -> AgentReport:
    """Return the machine's report; `node` is its name in the cluster, by default its host name.

    `nvidia_smi` is what `nvidia-smi -q -x` wrote, where NVML is not to be asked.
    """
    zones, cpus = probe_topology(tree)
    return AgentReport(
        node=node or host_name(tree),
        isa=probe_isa(tree),
        zones=zones,
        cpus=cpus,
        gpus=probe_cards(tree, nvidia_smi),
        memory_mib=_memory_mib(tree),
        agent=__version__,
        problems=_problems(tree),
    )


def host_name(tree: Tree) -> str:
    """Return the machine's host name, as kubelets name their nodes; empty where it is unknown."""
    found = tree.text("proc/sys/kernel/hostname", 256) or tree.text("etc/hostname", 256)
    if not found and tree.is_this_machine:
        found = os.uname().nodename
    if not found:
        tree.problems.append(MachineProblem("NodeNameUnknown", "no host name can be read; give it by --node"))
    return (found or "").lower()


def _memory_mib(tree: Tree) -> int | None:
    for line in (tree.text("proc/meminfo") or "").splitlines():
        name, _, amount = line.partition(":")
        words = amount.split()
        if name == "MemTotal" and len(words) == 2 and words[0].isdecimal() and len(words[0]) < 18:
            return int(words[0]) // 1024
    tree.problems.append(MachineProblem("MemoryUnknown", "/proc/meminfo: it has no MemTotal", "/proc/meminfo"))
    return None


def _problems(tree: Tree) -> tuple[MachineProblem, ...]:
    """Return each problem once, and not more than a person could read."""
    found = tuple(dict.fromkeys(tree.problems))
    more = len(found) - MAX_PROBLEMS
    if more <= 0:
        return found
    return (*found[:MAX_PROBLEMS], MachineProblem("TooManyProblems", f"{more} further problems are not told"))
