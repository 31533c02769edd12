"""The node-ready plugin: no new pods on nodes that are not Ready, or cordoned."""

from tests.builders import a_node, a_pod
from tests.unit.engine.fleet import ask

FLEET = [a_node("up"), a_node("down").not_ready(), a_node("cordoned").cordoned(), a_node("both").cordoned().not_ready()]


def test_only_ready_and_uncordoned_nodes_fit() -> None:
    answer = ask("node-ready", a_pod(), FLEET)
    assert answer.feasible == ["up"]
    assert answer.codes("down") == ["NodeNotReady"]
    assert answer.codes("cordoned") == ["NodeUnschedulable"]
    assert answer.codes("both") == ["NodeNotReady"]


def test_tolerations_of_cordoned_and_unready_nodes() -> None:
    cordon = a_pod().tolerating("node.kubernetes.io/unschedulable", effect="NoSchedule")
    assert ask("node-ready", cordon, FLEET).feasible == ["cordoned", "up"]
    for taint in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        unready = ask("node-ready", a_pod().tolerating(taint), FLEET)
        assert unready.feasible == ["down", "up"]
        assert unready.codes("both") == ["NodeUnschedulable"]
    assert ask("node-ready", a_pod().tolerating(), FLEET).feasible == ["both", "cordoned", "down", "up"]
    assert ask("node-ready", a_pod().tolerating("other"), FLEET).feasible == ["up"]
    evicted_later = a_pod().tolerating("node.kubernetes.io/not-ready", effect="NoExecute")
    assert ask("node-ready", evicted_later, FLEET).feasible == ["up"]
