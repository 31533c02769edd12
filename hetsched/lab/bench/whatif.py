"""Time of a what-if on 5,000 nodes with the full node x plugin matrix.

Each request has one pod with one of 64 shapes on a half-full fleet. The whole request is measured: digest of the
snapshot, copy of the state, decision, explanation of every node, and JSON text. It is also measured without the matrix.
Check: the digest of the state is the same before and after.
"""

from __future__ import annotations

import time

from hetsched.contracts.documents import encode
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.builtin_policies import BUILTIN, DEFAULT
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import compile_policy
from hetsched.engine.framework.registry import load_registry
from hetsched.engine.simulation.what_if import what_if

from . import fleet
from .measure import Checks, Progress, Scenario, machine, row

_NEVER = "1970-01-01T00:00:00Z"


def run(*, quick: bool = False, progress: Progress) -> Scenario:
    """Run the measurements; the checks show whether a request changed the state."""
    nodes, running, questions = (50, 100, 4) if quick else (5_000, 20_000, 60)
    state = ClusterState(fleet.fleet(nodes))
    policy = compile_policy(BUILTIN[DEFAULT], load_registry())
    kinds = fleet.shapes(64)
    scheduler = Scheduler(state, policy)
    for pod in fleet.pods(running, kinds):
        scheduler.schedule(pod)
    before = state.digest()
    with_matrix: list[float] = []
    without: list[float] = []
    for number, pod in enumerate(fleet.renamed(fleet.pods(questions, kinds, seed=9), "asked")):
        for explain, spent_millis in ((True, with_matrix), (False, without)):
            began = time.perf_counter()
            answer = what_if(state, policy, [pod], explain=explain, evaluated_at=_NEVER)
            encode(answer)
            spent_millis.append((time.perf_counter() - began) * 1e3)
        progress(number + 1, questions)
    return Scenario(
        "whatif",
        (
            row(f"one pod, full matrix, {nodes} nodes", "ms", with_matrix, tail=True),
            row(f"one pod, {nodes} nodes", "ms", without, tail=True),
        ),
        machine(),
        Checks(questions, int(state.digest() != before)),
    )
