"""isa-affinity: affinity, then the number of nodes with the set, then use, then name, each as a tie-breaker."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetsched.contracts.objects.policy import PluginUse
from hetsched.engine.explain.decision_matrix import matrix
from tests.builders import NodeBuilder, PodBuilder, a_node, a_pod
from tests.unit.engine.fleet import ask, policy_of, scheduler, score

PAPER = {"mode": "paper"}
ORDER = policy_of(PluginUse("isa-match", params=PAPER), "resource-fit", PluginUse("isa-affinity", params=PAPER))


def node(name: str, isa: str) -> NodeBuilder:
    return a_node(name).isa(isa).cpu(10).memory("10Gi")


def load(on: NodeBuilder, percent: int) -> PodBuilder:
    """Return a pod that uses this much of a node's CPU and memory."""
    name = on.build().name
    return a_pod(f"load-{name}").cpu(f"{percent * 100}m").memory(f"{percent * 1024 // 10}Mi").running_on(name)


def chosen(pod: PodBuilder, nodes: list[NodeBuilder], running: list[PodBuilder] | None = None) -> str | None:
    return scheduler(nodes, running or [], policy=ORDER).schedule(pod.build()).node


def test_closest_set_wins_regardless_of_use_and_rarity() -> None:
    # RV64IMF: 3/4 on RV64IMFD, 3/5 on RV64IMFDV.
    exact, wide = node("exact", "RV64IMFD"), [node(f"wide-{i}", "RV64IMFDV") for i in range(3)]
    assert chosen(a_pod().isa("RV64IMF").cpu("100m"), [exact, *wide], [load(exact, 80)]) == "exact"


def test_ties_of_affinity_go_to_the_most_common_set() -> None:
    # Both 3/4, but three nodes have RV64IMFD and two RV64IMFC; the emptier node does not matter.
    nodes = [node(f"c-{i}", "RV64IMFC") for i in range(2)] + [node(f"d-{i}", "RV64IMFD") for i in range(3)]
    assert chosen(a_pod().isa("RV64IMF"), nodes, [load(one, 50) for one in nodes[2:]]) == "d-0"


def test_only_feasible_candidates_are_counted() -> None:
    # Of three RV64IMFD nodes two are full: one is left against two RV64IMFC.
    nodes = [node(f"c-{i}", "RV64IMFC") for i in range(2)] + [node(f"d-{i}", "RV64IMFD") for i in range(3)]
    assert chosen(a_pod().isa("RV64IMF"), nodes, [load(one, 100) for one in nodes[3:]]) == "c-0"


def test_ties_within_a_set_go_to_the_least_used_node_then_by_name() -> None:
    nodes = [node(name, "RV64IMFD") for name in "abc"]
    assert chosen(a_pod().isa("RV64IMF"), nodes, [load(nodes[0], 60), load(nodes[2], 50)]) == "b"
    assert chosen(a_pod().isa("RV64IMF"), nodes, [load(nodes[0], 60)]) == "b"


def test_use_is_the_mean_of_cpu_and_memory() -> None:
    # a: (0.8 + 0) / 2 = 0.4;  b: (0.3 + 0.3) / 2 = 0.3;  none: (0 + 1) / 2 = 0.5, with no memory to give
    a, b, none = node("a", "RV64I"), node("b", "RV64I"), node("none", "RV64I").memory("0")
    running = [a_pod("on-a").cpu(8).memory("0").running_on("a"), load(b, 30)]
    scores = score("isa-affinity", a_pod().isa("RV64I").memory("0"), [a, b, none], running, params=PAPER)
    assert scores == {"b": 100, "a": 50, "none": 0}


def test_paper_counts_letters_and_lattice_counts_extensions() -> None:
    # Letters: IMAFDC of IMAFDCV is 6/7, and of IMAFDC_ZBA_ZBB 6/8. Items are equal: the lattice omits implied ones.
    nodes = [node("v", "RV64IMAFDCV"), node("zb", "RV64IMAFDC_ZBA_ZBB")]
    for mode in ("paper", "lattice"):
        raw = score("isa-affinity", a_pod().isa("RV64IMAFDC"), nodes, params={"mode": mode})
        assert raw == {"v": 100, "zb": 0}


@pytest.mark.parametrize(
    ("required", "offered", "fits"),
    [
        ("ARM", "ARM64", True),
        ("ARM64", "arm64+sve2", True),
        ("amd64+3dnow", "amd64+3dnowprefetch", False),
        ("amd64+3dnow", "amd64+3dnow", True),
    ],
)
def test_paper_mode_compares_features_by_the_lattice(required: str, offered: str, *, fits: bool) -> None:
    chosen = ask("isa-match", a_pod().isa(required), [a_node("n").isa(offered)], params=PAPER)
    assert bool(chosen.feasible) is fits


def test_single_candidate_scores_100_and_other_pods_are_skipped() -> None:
    assert score("isa-affinity", a_pod().isa("RV64I"), [node("n", "RV64IM")]) == {"n": 100}
    assert score("isa-affinity", a_pod(), [node("n", "RV64IM")]) is None


def test_alone_leaves_out_every_other_score_and_together_does_not() -> None:
    # Spread alone would select the empty wide node; affinity selects the exact one, which is nearly full.
    exact, wide = node("exact", "RV64IMFD"), node("wide", "RV64IMFDV")
    pod, full = a_pod().isa("RV64IMF").cpu("100m").memory("100Mi"), [load(exact, 90)]
    heavy = PluginUse("least-allocated", weight=1000)
    for alone, expected in ((True, "exact"), (False, "wide")):
        use = PluginUse("isa-affinity", params={**PAPER, "alone": alone})
        for order in ((use, heavy), (heavy, use)):
            policy = policy_of("isa-match", "resource-fit", *order)
            deciding = scheduler([exact, wide], full, policy=policy)
            shown = {score.plugin for node in matrix(deciding, pod.build()) for score in node.scores}
            assert shown == ({"isa-affinity"} if alone else {"isa-affinity", "least-allocated"})
            assert deciding.schedule(pod.build()).node == expected


SETS = st.sampled_from(["RV64I", "RV64IM", "RV64IMF", "RV64IMFC", "RV64IMFD", "RV64IMFDV", "ARM64"])


@settings(max_examples=60)
@given(
    nodes=st.lists(st.tuples(SETS, st.integers(0, 10), st.integers(0, 10)), min_size=1, max_size=12),
    wanted=st.sampled_from(["RV64I", "RV64IM", "RV64IMF"]),
)
def test_selection_equals_a_full_sort(nodes: list[tuple[str, int, int]], wanted: str) -> None:
    fleet = [node(f"n{i:02d}", isa) for i, (isa, _, _) in enumerate(nodes)]
    running = [
        a_pod(f"load-{i}").cpu(cpu).memory(f"{memory}Gi").running_on(f"n{i:02d}")
        for i, (_, cpu, memory) in enumerate(nodes)
    ]
    fits = [
        i
        for i, (isa, cpu, memory) in enumerate(nodes)
        if isa != "ARM64" and set(wanted[4:]) <= set(isa[4:]) and cpu < 10 and memory < 10
    ]

    def key(i: int) -> tuple[Fraction, int, Fraction, int]:
        isa, cpu, memory = nodes[i]
        affinity = Fraction(len(wanted[4:]), len(isa[4:]))
        sharing = sum(nodes[other][0] == isa for other in fits)
        return -affinity, -sharing, Fraction(cpu + memory, 20), i

    expected = f"n{min(fits, key=key):02d}" if fits else None
    assert chosen(a_pod().isa(wanted), fleet, running) == expected
