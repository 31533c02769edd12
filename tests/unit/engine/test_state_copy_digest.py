"""A digest reads only changed rows, also on a copy with a new log."""

from __future__ import annotations

import pytest

from hetsched.engine.cluster.state import ClusterState
from tests.builders import a_node, a_pod

NODES = [a_node("n1").build(), a_node("n2").build()]


def placed(*pods: str) -> ClusterState:
    state = ClusterState(NODES)
    for name in pods:
        state.assume(state.compile(a_pod(name).build()), 0)
    return state


@pytest.mark.parametrize("asked_before", [True, False])
def test_change_of_a_copy_changes_its_digest_alone(asked_before: bool) -> None:
    state = placed("a")
    if asked_before:
        state.digest()
    copy = state.fork()
    copy.assume(copy.compile(a_pod("b").build()), 0)
    assert copy.digest() == placed("a", "b").digest()
    assert state.digest() == placed("a").digest()


def test_copy_of_a_changed_state_is_read_completely() -> None:
    state = placed("a")
    state.digest()
    state.assume(state.compile(a_pod("b").build()), 0)
    assert state.fork().digest() == placed("a", "b").digest()
