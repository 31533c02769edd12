"""Report of one machine: all readable facts in one document.

Each probe reads its own part and adds unreadable facts to `Tree.problems`; no probe affects another.

After gRPC and NVML are loaded, a fifth of the process's memory is unused but not returned to the kernel. Therefore the
agent calls malloc_trim after each read of the machine, if the C library has it.
Source: malloc_trim(3).
"""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from hetsched import __version__
from hetsched.agent.gpus.probe import probe_cards
from hetsched.agent.isa.probe import probe_isa
from hetsched.agent.kubelet.state import probe_kubelet
from hetsched.agent.probe_topology import probe_topology
from hetsched.agent.probe_usage import UsageMeter, stated_capacities
from hetsched.agent.tree import Tree
from hetsched.contracts.cpuset import format_cpuset
from hetsched.contracts.messages.agent_report import AgentReport, KubeletState, MachineCpu, MachineProblem


def release_memory() -> None:
    """Return unused memory to the kernel."""
    if (trim := _trim()) is not None:
        trim(0)


@lru_cache(maxsize=1)
def _trim() -> Any:
    try:
        return getattr(ctypes.CDLL(None), "malloc_trim", None)
    except OSError:
        return None


if TYPE_CHECKING:
    from hetsched.agent.kubelet.podresources import PodResourcesClient

MAX_PROBLEMS = 200
POD_RESOURCES = "/var/lib/kubelet/pod-resources/kubelet.sock"


def read_machine(
    tree: Tree,
    *,
    node: str = "",
    nvidia_smi: bytes | None = None,
    meter: UsageMeter | None = None,
    kubelet: PodResourcesClient | None = None,
) -> AgentReport:
    """Return the machine's report; `node` is its node name, by default the host name.

    `nvidia_smi` is the output of `nvidia-smi -q -x`, which is used instead of NVML. `meter` provides the current usage;
    without a meter, usage is measured during the read. `kubelet` is the client for the kubelet's assignments, by
    default for the kubelet of this machine.
    """
    measuring = meter or UsageMeter(stated_capacities(os.environ))
    if meter is None:
        measuring.measure(Tree(tree.root))
    zones, cpus = probe_topology(tree)
    report = AgentReport(
        node=node or host_name(tree),
        isa=probe_isa(tree),
        zones=zones,
        cpus=cpus,
        gpus=probe_cards(tree, nvidia_smi),
        kubelet=_kubelet(tree, cpus or (), kubelet),
        memory_mib=_memory_mib(tree),
        agent=__version__,
    )
    if meter is None:
        measuring.wait()
        measuring.measure(tree)
    release_memory()
    return msgspec.structs.replace(
        report,
        zones=zones and measuring.with_steal(zones),
        usage=measuring.last,
        problems=_problems(tree),
    )


def _kubelet(tree: Tree, cpus: tuple[MachineCpu, ...], lister: PodResourcesClient | None) -> KubeletState | None:
    state = probe_kubelet(tree, cpus)
    if lister is None and not (tree.is_this_machine and tree.exists(POD_RESOURCES)):
        return state
    from hetsched.agent.kubelet.podresources import PodResourcesClient, PodResourcesFailure, with_pods

    asked = lister or PodResourcesClient()
    try:
        pods, allocatable = asked.pods(), asked.allocatable()
    except PodResourcesFailure as failure:
        if state is not None:
            what = f"the kubelet's pod-resources API does not respond, so its checkpoint files are used: {failure}"
            tree.problems.append(MachineProblem("PodResourcesUnknown", what, str(asked.socket)))
        return state
    finally:
        if lister is None:
            asked.close()
    online = format_cpuset(cpu.id for cpu in cpus if cpu.online)
    return with_pods(state, pods, allocatable, online=online)


def host_name(tree: Tree) -> str:
    """Return the machine's host name in lower case, as kubelets name their nodes, or "" if unknown."""
    found = tree.text("proc/sys/kernel/hostname", 256) or tree.text("etc/hostname", 256)
    if not found and tree.is_this_machine:
        found = os.uname().nodename
    if not found:
        tree.problems.append(MachineProblem("NodeNameUnknown", "the host name cannot be read: use --node"))
    return (found or "").lower()


def _memory_mib(tree: Tree) -> int | None:
    for line in (tree.text("proc/meminfo") or "").splitlines():
        name, _, amount = line.partition(":")
        words = amount.split()
        if name == "MemTotal" and len(words) == 2 and words[0].isdecimal() and len(words[0]) < 18:
            return int(words[0]) // 1024
    tree.problems.append(MachineProblem("MemoryUnknown", "/proc/meminfo: MemTotal is missing", "/proc/meminfo"))
    return None


def _problems(tree: Tree) -> tuple[MachineProblem, ...]:
    """Return the problems without duplicates, at most `MAX_PROBLEMS`."""
    found = tuple(dict.fromkeys(tree.problems))
    more = len(found) - MAX_PROBLEMS
    if more <= 0:
        return found
    return (*found[:MAX_PROBLEMS], MachineProblem("TooManyProblems", f"{more} more problems are not listed"))
