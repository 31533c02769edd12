"""Time to match one ISA requirement against 5,000 nodes.

The `isa-match` filter runs over the columns of all nodes: once with cached comparisons of ISA strings (the cost in a
decision), and once for new requirements (the cost in the first decision about a new shape). The baseline, a plain loop
that compares feature sets node by node, alternates with the filter in the same run. Parsing a string is measured
separately.
Check: for some of the requirements, the filter accepts the same nodes as comparing each node's ISA with `match`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import numpy as np

from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.contracts.objects.workload import IsaDemand, PodSpec, Shape
from hetsched.engine.cluster.columns import Bools
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.policy import compile_policy
from hetsched.engine.framework.registry import load_registry
from hetsched.engine.framework.request import Request
from hetsched.isa import Isa, match, parse

from . import fleet
from .measure import BenchmarkRow, Checks, Progress, Scenario, machine, row

_ADDITIONS = ("zba", "zbb", "zbs", "zbc", "zfh", "zvfh", "zicbom", "zicboz", "zihintpause", "zicond", "zacas", "zvbb")


def run(*, quick: bool = False, progress: Progress) -> Scenario:
    """Run the measurements; the checks count comparisons and differences."""
    nodes, count, rounds = (50, 40, 2) if quick else (5_000, 1_000, 20)
    state = ClusterState(fleet.fleet(nodes))
    policy = compile_policy(PolicySpec("isa", (PluginUse("isa-match"),)), load_registry())
    plugin = policy.filters[0].instance
    needs = requirements(count)
    requests = [
        state.compile(PodSpec("bench", f"pod-{i}", Shape(isa=IsaDemand(native=need)))) for i, need in enumerate(needs)
    ]

    def filter_one(request: Request) -> Bools:
        plugin.pre_filter(request, state)
        answer: Bools = plugin.filter(request, state.all_rows)
        return answer

    began = time.perf_counter()
    answers = [filter_one(request) for request in requests]
    first_micros = (time.perf_counter() - began) * 1e6 / count
    asked, offered = [parse(need) for need in needs[:rounds]], [_native(state, row) for row in range(nodes)]
    kept: list[float] = []
    kept_cpu: list[float] = []
    looped: list[float] = []
    for turn in range(rounds):
        began, began_cpu = time.perf_counter(), time.process_time()
        for request in requests:  # discard results, so that the match is measured and not the memory for its results
            filter_one(request)
        kept.append((time.perf_counter() - began) * 1e6 / count)
        kept_cpu.append((time.process_time() - began_cpu) * 1e6 / count)
        began = time.perf_counter()
        node_by_node(asked[turn], offered)
        looped.append((time.perf_counter() - began) * 1e6)
        progress(turn + 1, rounds)
    different = sum(
        bool(np.any(np.array([match(need, offer).satisfied for offer in offered]) != answer))
        for need, answer in zip(asked, answers, strict=False)
    )
    rows = (
        row(f"one requirement, {nodes} nodes", "us", kept),
        row(f"one requirement, {nodes} nodes, CPU time", "us", kept_cpu),
        row(f"one requirement, first time seen, {nodes} nodes", "us", [first_micros]),
        row(f"one requirement, {nodes} nodes, set by set", "us", looped),
        _parsing(needs, rounds),
    )
    return Scenario("isa", rows, machine(), Checks(len(asked), different))


def requirements(count: int) -> list[str]:
    """Return different requirement strings: RISC-V with additional extensions, then x86 levels and Arm versions."""
    bases = ("rv64gc", "rv64gcv", "rv64imac", "rv64imafdc")
    added = (
        f"{base}_{'_'.join(extra)}"
        for size in range(1, 5)
        for extra in itertools.combinations(_ADDITIONS, size)
        for base in bases
    )
    different = dict.fromkeys(itertools.chain(fleet.NEEDS, added))
    return list(itertools.islice(different, count))


def node_by_node(need: Isa, offered: Sequence[Isa]) -> list[bool]:
    """Return whether each node offers `need`, by one set comparison per node (the baseline)."""
    return [
        need.arch == offer.arch and need.xlen == offer.xlen and need.needed <= offer.extensions for offer in offered
    ]


def _native(state: ClusterState, row: int) -> Isa:
    return parse(state.reports[row].isa.native or "", source="node-label")


def _parsing(needs: Sequence[str], rounds: int) -> BenchmarkRow:
    """Measure the parsing of strings; different surrounding spaces in each round bypass the parser's cache."""
    micros = []
    for turn in range(rounds):
        texts = [f"{' ' * (turn + 1)}{need}" for need in needs[:200]]
        began = time.perf_counter()
        for text in texts:
            parse(text)
        micros.append((time.perf_counter() - began) * 1e6 / len(texts))
    return row("parse one string", "us", micros)
