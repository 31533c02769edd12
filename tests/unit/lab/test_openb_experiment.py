"""The openb experiment on a small fleet of the same structure: rows, expectations, and the gain of hetsched-gpu."""

from __future__ import annotations

import msgspec
import pytest

from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.lab.experiments import openb
from hetsched.lab.experiments.openb import Published, Study
from tests.builders import a_node, a_pod

# Like the trace: most GPUs on nodes with 12 cores per GPU, fewer on nodes with 32 to 48, none with much spare CPU.
NODES = (
    *(a_node(f"g{number:02}").cpu(96).memory("768Gi").gpus(8, "G2", None).build() for number in range(8)),
    *(a_node(f"t{number:02}").cpu(96).memory("512Gi").gpus(2, "T4", 15360).build() for number in range(8)),
    *(a_node(f"p{number:02}").cpu(64).memory("256Gi").gpus(2, "P100", 16280).build() for number in range(4)),
)


def a_list(*, with_ties: bool):
    """Return 400 pods: whole GPUs with little and much CPU, shares of 470, 810 and 320, pods without GPUs."""
    kinds = [
        (100, a_pod().cpu(8).gpu(1)),
        (60, a_pod().cpu(16).gpu(1)),
        (60, a_pod().cpu(6).gpu(1, milli=470)),
        (60, a_pod().cpu(12).gpu(1, milli=810)),
        (30, a_pod().cpu(4).gpu(1, milli=320)),
        (30, a_pod().cpu(8).gpu(1, milli=160)),
        (60, a_pod().cpu(24).memory("32Gi")),
    ]
    if with_ties:
        kinds.append((60, a_pod().cpu(8).gpu(1, model="T4", exact=True)))
    shapes = [pod for often, kind in kinds for pod in [kind.memory("16Gi").build()] * often]
    return tuple(msgspec.structs.replace(pod, name=f"pod-{number}") for number, pod in enumerate(shapes))


def ran(*policies: str, **changes):
    specs = tuple(BUILTIN[name] for name in policies)
    study = {"nodes": NODES, "lists": {"small": a_list(with_ties=False)}, "policies": specs, "seeds": 2} | changes
    return openb.run(Study(**study), lambda done, total: None)


def value(made, policy: str, case: str, metric: str) -> float:
    return next(r.value for r in made.rows if (r.policy, r.case, r.metric) == (policy, case, metric))


@pytest.mark.parametrize("rule", ["name", "shuffled", "random"])
def test_hetsched_gpu_leaves_no_more_cards_unused_than_fgd(rule) -> None:
    made = ran("fgd", "hetsched-gpu", ties=(rule,))
    case, metric = f"small, {openb.TIES_TEXT[rule]}", "unallocated GPUs at 130 %"
    assert value(made, "hetsched-gpu", case, metric) <= value(made, "fgd", case, metric)


def test_gpus_required_by_model_are_kept_free() -> None:
    made = ran(
        "first-fit",
        "fgd",
        "hetsched-gpu",
        lists={"tied": a_list(with_ties=True)},
        points=(1.0, 1.3),
        shown=(1.0, 1.3),
        ties=("name",),
    )
    assert [e for e in made.expectations if "at 100 %" in e.text and e.held]
    assert made.held


def test_each_load_is_compared_with_the_best_rival_of_the_same_tie_rule() -> None:
    names = ("first-fit", "fgd", "random", "hetsched", "hetsched-gpu")
    made = ran(*names, points=(0.5, 0.8, 1.0, 1.3), shown=(0.5, 0.8, 1.0, 1.3), ties=("name", "random"))
    for policy, below_full, above_full in (("hetsched", 0.3, 0.5), ("hetsched-gpu", 0.3, 0.3)):
        for rule in ("name", "random"):
            case = f"small, {openb.TIES_TEXT[rule]}"
            for load in (50, 80, 100, 130):
                figures = {
                    name: value(made, name, case, f"GPUs allocated at {load} % (%)") for name in (*names[:2], policy)
                }
                best = max(figures["first-fit"], figures["fgd"])
                below = value(made, policy, case, f"GPUs below the best rival at {load} % (points)")
                assert below == pytest.approx(best - figures[policy], abs=0.011)
                (line,) = [e for e in made.expectations if e.text.startswith(f"{case}, at {load} %: {policy} ")]
                assert line.held == (below <= (below_full if load < 100 else above_full))


def test_policy_below_its_baseline_fails_the_expectation() -> None:
    case, metric = "small, ties by name", "GPUs below the best rival at 80 % (points)"
    spread = msgspec.structs.replace(BUILTIN["spread"], name="hetsched")
    study = Study(
        NODES, {"small": a_list(with_ties=False)}, (BUILTIN["best-fit"], spread), ("name",), 2, (0.8,), (0.8,)
    )
    whole = tuple(
        msgspec.structs.replace(pod, shape=a_pod().cpu(8).gpu(8).build().shape) for pod in a_list(with_ties=False)[:8]
    )
    mixed = msgspec.structs.replace(study, lists={"small": (*a_list(with_ties=False)[:60], *whole)})
    made = openb.run(mixed, lambda done, total: None)
    assert value(made, "hetsched", case, metric) > 0.3
    assert [e.held for e in made.expectations] == [False]


def test_published_results_are_next_to_the_runs_under_their_protocol() -> None:
    known = {("small", "fgd"): Published({130: 90.0}, {130: 4.0})}
    made = ran("fgd", ties=("shuffled", "random"), published=known)
    rows = {(row.case, row.metric): row.published for row in made.rows}
    # 88 GPUs: 10 % of them are 8.8 unallocated
    assert rows["small, ties by shuffled names", "GPUs allocated at 130 % (%)"] == 90.0
    assert rows["small, ties by shuffled names", "GPUs fragmented at 130 % (%)"] == 4.0
    assert rows["small, ties by shuffled names", "unallocated GPUs at 130 %"] == 8.8
    assert rows["small, random ties", "GPUs allocated at 130 % (%)"] is None
    (expectation,) = made.expectations
    assert "published 90.00 %" in expectation.text
    assert expectation.held == (
        abs(value(made, "fgd", "small, ties by shuffled names", "GPUs allocated at 130 % (%)") - 90) <= 2
    )


def test_means_and_the_ratio_are_reported_where_every_published_list_ran() -> None:
    known = {("one", "fgd"): Published({}, {}), ("two", "fgd"): Published({}, {})}
    lists = {"one": a_list(with_ties=False), "two": a_list(with_ties=True)}
    made = ran("fgd", "hetsched-gpu", lists=lists, published=known, ties=("name",), seeds=1)
    metric = "unallocated GPUs at 130 %"
    each = [value(made, "fgd", f"{name}, ties by name", metric) for name in lists]
    assert value(made, "fgd", "mean of 2 lists, ties by name", metric) == pytest.approx(sum(each) / 2, abs=0.1)
    assert [e.text for e in made.expectations if e.text.startswith("mean of 2 lists")]
    part = ran("fgd", "hetsched-gpu", published=known, ties=("name",), seeds=1)
    assert not [e.text for e in part.expectations if e.text.startswith("mean")]


def test_policy_with_random_ties_runs_once() -> None:
    made = ran("random", "first-fit", seeds=1)
    assert {row.case for row in made.rows if row.policy == "random"} == {"small, ties by shuffled names"}
    assert len({row.case for row in made.rows if row.policy == "first-fit"}) == 3


def test_plots_show_every_load_and_rows_the_chosen_ones() -> None:
    made = ran("first-fit", points=(0.5, 0.9, 1.3), shown=(0.9, 1.3), ties=("name",), seeds=1)
    assert {row.metric for row in made.rows} == {
        "GPUs allocated at 90 % (%)", "GPUs fragmented at 90 % (%)", "GPUs allocated at 130 % (%)",
        "GPUs fragmented at 130 % (%)", "unallocated GPUs at 130 %",
    }  # fmt: skip
    assert len(made.charts) == 3
    assert all(chart.startswith("<svg") for chart in made.charts)
