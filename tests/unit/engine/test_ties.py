"""Ties: the lowest name, or a draw that the seed repeats."""

from hetsched.contracts.objects.policy import Ties
from tests.builders import a_node, a_pod
from tests.unit.engine.fleet import policy_of, scheduler

FLEET = [a_node(name) for name in ("c", "a", "e", "b", "d")]


def picks(ties: Ties, count: int = 40) -> list[str | None]:
    deciding = scheduler(FLEET, policy=policy_of("node-ready", ties=ties))
    return [deciding.schedule(a_pod(f"p{i}").build()).node for i in range(count)]


def test_ties_go_to_the_lowest_name_by_default() -> None:
    assert set(picks(Ties())) == {"a"}


def test_random_tie_break_depends_only_on_its_seed() -> None:
    first = picks(Ties("random", 7))
    assert first == picks(Ties("random", 7))
    assert first != picks(Ties("random", 8))
    assert set(first) == {"a", "b", "c", "d", "e"}  # 40 draws of 5: missing one has a chance of 5 * 0.8 ** 40 < 0.1 %


def test_draw_depends_on_the_pod_and_not_on_earlier_draws() -> None:
    ties = Ties("random", 7)
    alone = scheduler(FLEET, policy=policy_of("node-ready", ties=ties)).schedule(a_pod("p9").build()).node
    assert alone == picks(ties)[9]


def test_random_tie_break_selects_only_best_nodes() -> None:
    preferring = a_pod().preferring(1, "disk", "In", "ssd")
    fleet = [a_node("a"), a_node("b").labelled(disk="ssd"), a_node("c").labelled(disk="ssd")]
    deciding = scheduler(fleet, policy=policy_of("node-affinity", ties=Ties("random", 1)))
    drawn = {deciding.schedule(preferring.having(name=f"p{i}").build()).node for i in range(30)}
    assert drawn == {"b", "c"}
