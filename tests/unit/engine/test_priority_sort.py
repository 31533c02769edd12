"""The priority-sort plugin, and the order of a queue."""

from tests.builders import a_pod
from tests.unit.engine.fleet import policy_of


def test_higher_priority_first_then_submission_order() -> None:
    waiting = [a_pod("a").priority(1), a_pod("b").priority(5), a_pod("c").priority(1), a_pod("d").priority(-3)]
    for policy in (policy_of("priority-sort"), policy_of("taints")):  # the default without a queue-sort plugin
        order = sorted((pod.build() for pod in waiting), key=policy.sort_key)
        assert [pod.name for pod in order] == ["b", "a", "c", "d"]
