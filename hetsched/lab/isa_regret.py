"""Cost of narrow jobs on rare cores for the jobs that need these cores.

With every job on a correct node a policy can still be wasteful: narrow jobs that could run anywhere fill the few nodes
that alone can run the wide ones. The cluster has 300 nodes of 8 CPUs, half rv64gc, 30 % with Zba and Zbb, 15 % with V,
5 % wide (all of these and more). First come 2,000 rv64gc jobs, then 400 that need the second, third or fourth set (5 :
3 : 2), all from one seed; they request about 94 % of all CPUs. The regret is the number of wide jobs that are refused
while a narrow job runs on a node that the wide one could use. Node kinds are random in name order, so names carry no
information.
"""

from __future__ import annotations

import random

from hetsched.contracts.objects.node_report import IsaReport, NodeReport
from hetsched.contracts.objects.workload import IsaDemand, PodSpec, Shape
from hetsched.contracts.units import MIB
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import Policy
from hetsched.isa import match, parse

NODES, NARROW_JOBS, WIDE_JOBS = 300, 2000, 400
_GIB = 1024 * MIB
_NARROW = "rv64gc"
_SHARES = {_NARROW: 0.5, "rv64gc_zba_zbb": 0.3, "rv64gcv": 0.15, "rv64gcv_zba_zbb_zbs_zfh_zvbb": 0.05}
_WIDE_WEIGHTS = (5, 3, 2)
_NARROW_SIZES = ((500, 2 * _GIB), (1000, 3 * _GIB), (1300, 4 * _GIB))
_WIDE_SIZE = (1000, 4 * _GIB)


def regret(policy: Policy, seed: int) -> int:
    """Place the jobs of one seed under a policy; return the number of wide jobs refused because of narrow ones."""
    draw = random.Random(seed)
    state = ClusterState(_nodes(draw))
    scheduler = Scheduler(state, policy)
    narrow = [_job(f"narrow-{i}", _NARROW, draw.choice(_NARROW_SIZES)) for i in range(NARROW_JOBS)]
    wide = [
        _job(f"wide-{i}", need, _WIDE_SIZE)
        for i, need in enumerate(draw.choices([*_SHARES][1:], _WIDE_WEIGHTS, k=WIDE_JOBS))
    ]
    placed = [scheduler.schedule(job) for job in narrow]
    offered = {state.reports[outcome.row].isa.native or "" for outcome in placed if outcome.node}
    taken = {need for need in _SHARES if any(_covers(offer, need) for offer in offered)}
    refused = [job for job in wide if scheduler.schedule(job).node is None]
    return sum(job.shape.isa is not None and job.shape.isa.native in taken for job in refused)


def _nodes(draw: random.Random) -> list[NodeReport]:
    sets = [name for name, share in _SHARES.items() for _ in range(round(NODES * share))]
    draw.shuffle(sets)
    return [
        NodeReport(
            name=f"node-{number:03d}",
            allocatable={"cpu": 8000, "memory": 32 * _GIB, "pods": 110},
            isa=IsaReport(native=name, source="label ARCH"),
        )
        for number, name in enumerate(sets)
    ]


def _job(name: str, need: str, size: tuple[int, int]) -> PodSpec:
    cpu, memory = size
    shape = Shape(
        requests=(("cpu", cpu), ("memory", memory), ("pods", 1)),
        nonzero_cpu_millis=cpu,
        nonzero_memory_bytes=memory,
        isa=IsaDemand(need, source="label ARCH"),
    )
    return PodSpec(namespace="lab", name=name, shape=shape)


def _covers(offer: str, need: str) -> bool:
    return match(parse(need), parse(offer, source="node-label")).satisfied
