"""ISAMatch: the right instruction set for every pod, compared with a scheduler that ignores instruction sets.

The cluster has one x86 node, one Arm node and three different RISC-V nodes: 3 of 5, 2 of 5 and 2 of 3 nodes can run
the pods of the three groups.
The 100 tasks of `hetsched.lab.isa_cluster` (90 services, 10 compute jobs) are placed one by one by real policies, in
three groups: the base set RV64I, RV64IMFD, and RV64IMFD on nodes that a selector limits to RISC-V. A placement is right
if the node can run the pod's instructions. Seed 5708 is fitted: with the scores of kube-scheduler 1.18 it yields
exactly the published 62 / 41 / 67. Twenty other seeds show the default without fitting. The other results of the
publication follow: the two tie-breaks on 14 nodes, the placement when the first choice is full, and the time of one
match.
`regret` is not part of the publication: the number of wide jobs that are rejected while a narrow job runs on a node
that the wide job could use. On 300 nodes with 8 CPUs (half rv64gc, 30 % with Zba and Zbb, 15 % with V, 5 % with all of
these), 2,000 rv64gc jobs arrive before 400 jobs that need the second, third or fourth set (5 : 3 : 2). All jobs request
about 94 % of the CPUs. Names of nodes are in random order.
Source: Jiang et al., Computer Systems & Applications 2022 31(9). Its Table 1 was not available, so nodes and tasks are
a reconstruction.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import fmean, stdev

from hetsched.contracts.objects.node_report import IsaReport, NodeReport
from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.contracts.objects.workload import IsaDemand, PodSpec, Shape
from hetsched.contracts.units import MIB
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import Policy, compile_policy
from hetsched.engine.framework.registry import load_registry
from hetsched.isa import match, parse
from hetsched.lab.bench.measure import Progress
from hetsched.lab.isa_cluster import GROUPS, TASKS, IsaPodGroup, cluster, node, pod, tasks
from hetsched.lab.plots import bar_chart
from hetsched.lab.policies import POLICIES, earlier_kube

from .outcome import ExpectedResult, Experiment, ResultRow

NODES, NARROW_JOBS, WIDE_JOBS = 300, 2000, 400
_GIB = 1024 * MIB
_NARROW = "rv64gc"
_SHARES = {_NARROW: 0.5, "rv64gc_zba_zbb": 0.3, "rv64gcv": 0.15, "rv64gcv_zba_zbb_zbs_zfh_zvbb": 0.05}
_WIDE_WEIGHTS = (5, 3, 2)
_NARROW_SIZES = ((500, 2 * _GIB), (1000, 3 * _GIB), (1300, 4 * _GIB))
_WIDE_SIZE = (1000, 4 * _GIB)


def regret(policy: Policy, seed: int) -> int:
    """Place the jobs of one seed under a policy; return the number of wide jobs rejected because of narrow jobs."""
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


FITTED_SEED = 5708
_OTHER_SEEDS = range(1, 21)
_REGRET_SEEDS = range(101, 121)
_PUBLISHED_MICROSECONDS = 60.57
_ROUNDS = 20
KUBE_1_18 = earlier_kube("difference", "default-kube 1.18")
_OURS = ("isamatch", "hetsched")


def run(progress: Progress) -> Experiment:
    """Measure the pod groups, the other results of the publication and the regret."""
    steps = 4 + len(_REGRET_SEEDS)
    policies = {name: _policy(POLICIES[name]) for name in ("default-kube", *_OURS)}
    policies[KUBE_1_18.name] = _policy(KUBE_1_18)
    rows, expectations = _groups(policies)
    progress(1, steps)
    for part in (_overflow, _figure_5):
        more, expected = part(policies["isamatch"])
        rows, expectations = rows + more, expectations + expected
    progress(2, steps)
    took = _match_microseconds(policies["isamatch"])
    rows.append(ResultRow("isamatch", "5 nodes", "match of one pod, us", round(took, 2), _PUBLISHED_MICROSECONDS))
    progress(3, steps)
    more, expected = _regret(lambda done: progress(3 + done, steps))
    shown = (("default", policies["default-kube"]), ("ISAMatch", policies["isamatch"]))
    chart = bar_chart(
        "Pods on compatible nodes, seed 5708",
        [(f"{name}: {g.short}", _right(policy, g, FITTED_SEED)) for g in GROUPS for name, policy in shown],
        y_label="% right",
    )
    progress(steps, steps)
    return Experiment(
        name="isamatch",
        title="ISAMatch: pods on nodes with a compatible instruction set",
        source="ISAMatch (Jiang et al., Computer Systems & Applications 2022 31(9) 3-14)",
        reconstruction=True,
        rows=tuple(rows + more),
        expectations=tuple(expectations + expected),
        notes=(
            "The nodes' exact ISA strings and the tasks are not from the publication. Seed 5708 was found by a search; "
            "the other seeds were not.",
            "Nodes and jobs of the regret are not from the publication; the weight of isa-scarcity was chosen on other "
            "seeds.",
            "62 / 41 / 67 % is close to a random choice: 3 of 5, 2 of 5 and 2 of 3 nodes are compatible.",
        ),
        charts=(chart, *_regret_chart(more)),
    )


# -- the three groups ------------------------------------------------------------------------------------------------


def _groups(policies: dict[str, Policy]) -> tuple[list[ResultRow], list[ExpectedResult]]:
    rows: list[ResultRow] = []
    expectations: list[ExpectedResult] = []
    for group in GROUPS:
        for name, policy in policies.items():
            fitted = _right(policy, group, FITTED_SEED)
            others = [_right(policy, group, seed) for seed in _OTHER_SEEDS]
            published = 100.0 if name in _OURS else group.published
            rows.append(ResultRow(name, group.title, "% right, seed 5708", fitted, published))
            rows.append(ResultRow(name, group.title, "% right, mean of 20 seeds", round(fmean(others), 1), published))
            rows.append(ResultRow(name, group.title, "% right, standard deviation", round(stdev(others), 1)))
            where = f"{name}, {group.title}"
            if name in _OURS:
                worst = min(fitted, *others)
                expectations.append(ExpectedResult(f"{where}: at least {worst:g} % right", worst == 100.0))
                continue
            text = f"{where}: {fitted:g} % right on seed 5708, {fmean(others):.1f} % on others, published {published:g}"
            within = all(abs(found - published) <= 10 for found in (fitted, fmean(others)))
            expectations.append(ExpectedResult(f"{text} +- 10", within))
            if name == KUBE_1_18.name:
                expectations.append(
                    ExpectedResult(f"{where}: {fitted:g} % is the published figure", fitted == published)
                )
    return rows, expectations


def _right(policy: Policy, group: IsaPodGroup, seed: int) -> float:
    """Return the percentage of a group's pods whose node can run their instructions."""
    return 100.0 * sum(node in group.right for node in placed(policy, group, seed)) / TASKS


def placed(policy: Policy, group: IsaPodGroup, seed: int) -> list[str | None]:
    """Return the node of each task of a group, in the order of submission."""
    scheduler = Scheduler(ClusterState(cluster()), policy)
    return [scheduler.schedule(pod).node for pod in tasks(group, seed)]


# -- the figures -----------------------------------------------------------------------------------------------------


def _overflow(policy: Policy) -> tuple[list[ResultRow], list[ExpectedResult]]:
    """Measure Fig. 10: pods fill the node with the highest ISA affinity before they use the next one.

    The figure shows RV64IMFD; the group with the base set RV64I is measured in addition.
    """
    nodes = placed(policy, GROUPS[1], FITTED_SEED)
    counts, base = Counter(nodes), Counter(placed(policy, GROUPS[0], FITTED_SEED))
    spill = next(index for index, node in enumerate(nodes) if node != "node3")
    case = "Fig. 10, RV64IMFD"
    rows = [
        ResultRow("isamatch", case, "pods on node3", counts["node3"]),
        ResultRow("isamatch", case, "pods on node5", counts["node5"]),
        ResultRow("isamatch", case, "index of the first pod on node5", spill),
        ResultRow("isamatch", "RV64I", "pods on node4", base["node4"]),
        ResultRow("isamatch", "RV64I", "pods on node3", base["node3"]),
    ]
    text = f"RV64IMFD: node3 {counts['node3']}, node5 {counts['node5']}, the first of them at index {spill}"
    other = f"RV64I: node4 {base['node4']} (affinity 1/2), node3 {base['node3']} (1/4)"
    return rows, [
        ExpectedResult(text, (counts["node3"], counts["node5"], spill) == (94, 6, 89)),
        ExpectedResult(other, (base["node4"], base["node3"]) == (94, 6)),
    ]


def _figure_5(policy: Policy) -> tuple[list[ResultRow], list[ExpectedResult]]:
    """Measure Fig. 5: choose among 14 nodes, of which 9 are RISC-V and 7 have I, M and F.

    Among nodes of equal affinity, the more common instruction set is preferred, then the lower utilisation.
    """
    found = figure_5(policy)
    rows = [ResultRow("isamatch", "Fig. 5, RV64IMF", metric, value, published) for metric, value, published in found]
    values = tuple(value for _, value, _ in found)
    text = "{:g} nodes -> {:g} RISC-V -> {:g} with IMF; chosen: affinity {:g}, {:g} nodes with its set, {:g} % used"
    return rows, [ExpectedResult(text.format(*values), values == (14, 9, 7, 0.75, 3, 30))]


def figure_5(policy: Policy) -> list[tuple[str, float, float | None]]:
    """Return the metrics of Fig. 5 as (name, measured value, published value or None)."""
    sets = ["X86"] * 3 + ["ARM64"] * 2 + ["RV64I", "RV64IM"] + ["RV64IMFD"] * 3 + ["RV64IMFC"] * 2 + ["RV64IMFDV"] * 2
    used = dict(zip((7, 8, 9), (60, 30, 50), strict=True))
    nodes = [node(f"node{number:02d}", isa, "") for number, isa in enumerate(sets)]
    running = [
        pod(f"load-{row}", "", 160 * percent, 32768 * percent // 100, on=nodes[row].name)
        for row, percent in used.items()
    ]
    state = ClusterState(nodes, running)
    scheduler = Scheduler(state, policy)
    asking = pod("pod", "RV64IMF", 100, 100)
    evaluation, _ = scheduler.evaluator.evaluate(state.compile(asking))
    chosen = scheduler.schedule(asking).row
    label = state.reports[chosen].isa.native or ""
    return [
        ("nodes", len(nodes), 14),
        ("RISC-V nodes", sum(isa.startswith("RV") for isa in sets), 9),
        ("nodes that pass the filter", int(evaluation.feasible.sum()), 7),
        ("affinity of the chosen node", len("IMF") / len(label.removeprefix("RV64")), None),
        ("candidates with its instruction set", sets.count(label), None),
        ("its utilisation, %", used.get(chosen, 0), None),
    ]


def _match_microseconds(policy: Policy) -> float:
    """Return the time in microseconds to filter and order the five nodes by instruction set for one pod.

    The time is averaged over all tasks of a round; the result is that of the fastest round.
    """
    state = ClusterState(cluster())
    match, affinity = (next(p.instance for p in policy.plugins if p.name == n) for n in ("isa-match", "isa-affinity"))
    requests = [state.compile(pod) for pod in tasks(GROUPS[1], FITTED_SEED)]
    means = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        for request in requests:
            match.pre_filter(request, state)
            feasible = match.filter(request, state.all_rows)
            affinity.pre_score(request, state)
            affinity.normalize(request, affinity.score(request, state.all_rows), feasible)
        means.append((time.perf_counter() - began) * 1e6 / len(requests))
    return min(means)


# -- beyond the publication: the cost of narrow jobs on wide nodes ----------------------------------------------------


def _regret(progress: Callable[[int], None]) -> tuple[list[ResultRow], list[ExpectedResult]]:
    specs = (POLICIES["random"], with_scarcity(0), POLICIES["isamatch"], with_scarcity(2))
    policies = {spec.name: _policy(spec) for spec in specs}
    found: dict[str, list[float]] = {name: [] for name in policies}
    for done, seed in enumerate(_REGRET_SEEDS, 1):
        for name, policy in policies.items():
            found[name].append(regret(policy, seed))
        progress(done)
    means = {name: fmean(values) for name, values in found.items()}
    rows = [
        ResultRow(
            name, "300 nodes, 2,000 narrow and 400 wide jobs", "wide jobs refused for narrow ones", round(mean, 1)
        )
        for name, mean in means.items()
    ]
    anywhere, _, published, ours = means.values()
    text = f"regret {ours:.1f} wide jobs: at most a tenth of the {anywhere:.1f} of a random policy"
    other = f"regret {ours:.1f} wide jobs: at most half of the {published:.1f} of the published order"
    return rows, [ExpectedResult(text, ours <= 0.1 * anywhere), ExpectedResult(other, ours <= 0.5 * published)]


def with_scarcity(weight: float) -> PolicySpec:
    """Return the default policy with the given weight of `isa-scarcity`, where 0 disables it."""
    others = tuple(use for use in POLICIES["hetsched"].plugins if use.name != "isa-scarcity")
    name = f"hetsched {'with' if weight else 'without'} isa-scarcity"
    return PolicySpec(name, (*others, PluginUse("isa-scarcity", weight=weight)))


def _regret_chart(rows: Sequence[ResultRow]) -> list[str]:
    bars = [(row.policy.removesuffix(" isa-scarcity"), row.value) for row in rows]
    return [bar_chart("Wide jobs refused for narrow ones (with and without isa-scarcity)", bars, y_label="jobs")]


# -- nodes and pods --------------------------------------------------------------------------------------------------


def _policy(spec: PolicySpec) -> Policy:
    return compile_policy(spec, load_registry())
