"""CPUs that a kubelet reserves if only their number is configured.

Under the static policy, `kubeReserved: {cpu: 500m}` reserves certain CPUs that no file lists. The kubelet chooses them
like the CPUs of a container, with its policy options (`cpu_manager`).
"""

from __future__ import annotations

from collections.abc import Iterable

from .cpu_manager import strategy_of, take
from .cpu_topology import Cpu, Topology
from .messages.agent_report import MachineCpu
from .objects.kubelet_options import KubeletOptions


def reserved_by_amount(cpus: Iterable[MachineCpu], count: int, options: KubeletOptions) -> frozenset[int] | None:
    """Return the CPUs that a kubelet with the static CPU manager policy reserves if only their number is configured.

    The result is None if a CPU's topology is unknown, or if the kubelet could not reserve `count` CPUs. CPUs without a
    known last-level cache share that of their socket.
    """
    listed: list[Cpu] = []
    for cpu in cpus:
        if not cpu.online:
            continue
        if cpu.core is None or cpu.socket is None or cpu.zone is None:
            return None
        listed.append(Cpu(cpu.id, cpu.zone, cpu.socket, cpu.core, cpu.socket if cpu.cache is None else cpu.cache))
    topology = Topology(listed)
    taken = take(topology, topology.all, count, strategy_of(options, topology))
    return None if taken is None else frozenset(topology.ids(taken))
