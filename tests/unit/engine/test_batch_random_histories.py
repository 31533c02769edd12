"""On random clusters, streams and histories a batch and the cycle, pod by pod, end in the same ledger."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.compiled.batch import BatchScheduler
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.engine.framework.outcome import Outcome
from tests.builders import a_node, a_pod
from tests.unit.engine.draws import NAMESPACES, mixed_fleets, mixed_pods
from tests.unit.engine.fleet import built, scheduler


def fields_of(outcome: Outcome) -> tuple[object, ...]:
    return (
        outcome.pod.key,
        outcome.node,
        outcome.row,
        outcome.allocation,
        outcome.score,
        outcome.refusal,
        outcome.is_waiting,
    )


@settings(max_examples=100)
@given(mixed_fleets(), mixed_pods(), st.sampled_from(sorted(BUILTIN)), st.lists(st.integers(0, 11), max_size=4))
def test_batch_and_cycle_have_equal_outcomes_and_state(
    fleet: list[NodeReport], pods: list[PodSpec], policy: str, cuts: list[int]
) -> None:
    single = scheduler(fleet, policy=policy, namespaces=NAMESPACES)
    batched = scheduler(fleet, policy=policy, namespaces=NAMESPACES)
    batches = BatchScheduler(batched, expected=10**9, shortest=1)
    bounds = [0, *sorted({min(cut, len(pods)) for cut in cuts}), len(pods)]
    for start, end in pairwise(bounds):
        expected = [fields_of(single.schedule(pod)) for pod in pods[start:end]]
        assert [fields_of(outcome) for outcome in batches.schedule(pods[start:end])] == expected
        assert batched.state.digest() == single.state.digest()
        assert batched.state.columns.load.tobytes() == single.state.columns.load.tobytes()
        for key in sorted(single.state.placed_pods)[::3]:  # some leave between two batches
            single.state.forget(key)
            batched.state.forget(key)


def test_new_resource_within_a_batch() -> None:
    # Compiling the third pod widens the ledger's columns; the first two were compiled before.
    pods = [built(a_pod("a")), built(a_pod("b")), built(a_pod("c").requesting("example.com/new", 1)), built(a_pod("d"))]
    single, batched = scheduler([a_node("n")]), scheduler([a_node("n")])
    expected = [fields_of(single.schedule(pod)) for pod in pods]
    assert [
        fields_of(outcome) for outcome in BatchScheduler(batched, expected=10**9, shortest=1).schedule(pods)
    ] == expected
    assert batched.state.digest() == single.state.digest()
