"""The gpu-fit plugin: whole and shared GPUs, their facts, and the selected ones."""

from typing import Any

import msgspec
import pytest

from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.objects.allocation import CardGrant
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.framework.status import Refusal
from hetsched.engine.plugins.gpu.gpu_fit import BUSY
from tests.builders import PodBuilder, a_node, a_pod
from tests.unit.engine.fleet import Node, active, ask, built, cluster, policy_of, scheduler

A100 = 40_960  # MiB of memory of the builders' GPU


def holding(name: str, node: str, *cards: tuple[int, int, int]) -> PodBuilder:
    """Return a running pod that holds (index, milli, MiB) shares."""
    grants = [CardGrant(index, milli, memory) for index, milli, memory in cards]
    return a_pod(name).gpu(len(cards), milli=cards[0][1]).running_on(node, *grants)


def granted(pod: PodBuilder, node: Node, running: list[PodBuilder]) -> list[tuple[int, int, int]]:
    deciding = scheduler([node], running, policy=policy_of("gpu-fit"))
    return [(card.index, card.milli, card.memory_mib) for card in deciding.schedule(built(pod)).allocation.gpus]


# -- whole GPUs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "fits"), [(1, True), (2, True), (3, False)])
def test_pod_needs_its_number_of_free_gpus(count: int, fits: bool) -> None:
    assert ask("gpu-fit", a_pod().gpu(count), [a_node("n").gpus(2)]).fits == {"n": fits}


def test_shared_gpu_is_not_free_for_a_whole_gpu_request() -> None:
    running = [holding("r", "n", (0, 300, 12_288))]
    answer = ask("gpu-fit", a_pod().gpu(2), [a_node("n").gpus(2)], running)
    assert answer.codes("n") == ["GpuInsufficient"]
    assert answer.reasons["n"][0].resolvable
    assert ask("gpu-fit", a_pod().gpu(1), [a_node("n").gpus(2)], running).feasible == ["n"]


def test_unhealthy_cards_are_no_cards() -> None:
    sick = a_node("n").gpus(1, healthy=False)
    assert ask("gpu-fit", a_pod().gpu(1), [sick]).codes("n") == ["GpuNone"]
    assert ask("gpu-fit", a_pod().gpu(2), [sick.gpus(1)]).codes("n") == ["GpuTooFewCards"]


def test_gpu_in_maintenance_is_not_now_and_an_unhealthy_one_never_fits() -> None:
    """Only maintenance excludes the pod: some node could take it empty, and the reason says so."""
    resting = a_node("n").gpus(1, healthy=False, maintenance=True)
    pod, policy = a_pod().gpu(1), policy_of("resource-fit", "gpu-fit")

    def diagnosed(pod: PodBuilder, node: Node, *running: PodBuilder) -> tuple[Verdict, list[str]]:
        found = diagnose(scheduler([node], running, policy=policy), built(pod))
        return found.verdict, [reason.code for reason in found.reasons]

    assert diagnosed(pod, resting) == (Verdict.NOT_NOW, ["GpuInMaintenance"])
    assert diagnosed(pod, a_node("n").gpus(1, healthy=False)) == (Verdict.NEVER_FITS, ["GpuNone"])
    # Two GPUs, one of them in maintenance: three never fit, nor does a model or a memory that neither has.
    both = resting.gpus(1)
    assert diagnosed(a_pod().gpu(2), both) == (Verdict.NOT_NOW, ["GpuInMaintenance"])
    assert diagnosed(a_pod().gpu(3), both) == (Verdict.NEVER_FITS, ["GpuTooFewCards"])
    assert diagnosed(a_pod().gpu(2, model="H100"), both) == (Verdict.NEVER_FITS, ["GpuModelMismatch"])
    assert diagnosed(a_pod().gpu(2, memory_mib=50_000), both) == (Verdict.NEVER_FITS, ["GpuMemoryTooSmall"])
    # One GPU would suffice and is in use: the pod waits for its holder, not for the end of the maintenance.
    held = holding("r", "n", (1, 1000, A100))
    assert diagnosed(pod, both, held) == (Verdict.NOT_NOW, ["GpuInsufficient"])
    # By an extended resource, which schedulers that only count use: it is there in the empty cluster too.
    counting = policy_of("resource-fit")
    asked = built(a_pod().requesting("nvidia.com/gpu", 1))
    assert diagnose(scheduler([resting], policy=counting), asked).verdict is Verdict.NOT_NOW


def test_maintenance_keeps_allocations_and_ends_without_a_rebuild() -> None:
    """Pods on a GPU in maintenance stay charged; a report of its end is applied to the existing state."""
    node = a_node("n").gpus(2)
    cards = built(node).gpus
    assert cards is not None
    off = (cards[0], msgspec.structs.replace(cards[1], healthy=False, maintenance=True))
    held = holding("r", "n", (1, 400, 0))
    state = cluster([a_node("n").having(gpus=off)], [held])
    assert state.columns.field("card_milli_free")[:, 0].tolist() == [1000, -400]
    assert state.emptied().load("card_milli_free")[:, 0].tolist() == [1000, 1000]
    back = built(node)
    assert state.fits_layout(back)
    state.apply_report(back)
    assert state.columns.field("card_milli_free")[:, 0].tolist() == [1000, 600]


def test_pods_without_a_demand_are_not_filtered() -> None:
    assert ask("gpu-fit", a_pod(), [a_node("n")]).skipped
    assert ask("gpu-fit", a_pod().gpu(0), [a_node("n")]).skipped


def test_whole_gpus_have_all_their_memory_lowest_index_first() -> None:
    running = [holding("r", "n", (1, 1000, A100))]
    assert granted(a_pod().gpu(2), a_node("n").gpus(4), running) == [(0, 1000, A100), (2, 1000, A100)]


# -- shared GPUs ----------------------------------------------------------------------------------------------------


def test_gpu_share_is_charged_its_memory_rounded_up() -> None:
    # 40960 MiB * 333 / 1000 = 13639.68 -> 13640
    assert granted(a_pod().gpu(1, milli=333), a_node("n").gpus(1), []) == [(0, 333, 13_640)]


def test_share_is_charged_its_stated_memory() -> None:
    assert granted(a_pod().gpu(1, milli=333, memory_mib=4_000), a_node("n").gpus(1), []) == [(0, 333, 4_000)]


def test_gpu_of_unknown_memory_charges_no_memory() -> None:
    assert granted(a_pod().gpu(1, milli=500), a_node("n").gpus(1, memory_mib=None), []) == [(0, 500, 0)]


def test_share_goes_to_the_fullest_fitting_gpu() -> None:
    # Free milli: card 0 1000, card 1 400, card 2 600, card 3 200. Asked 300: card 1 (400) is the tightest.
    node = a_node("n").gpus(4)
    running = [holding("a", "n", (1, 600, 0)), holding("b", "n", (2, 400, 0)), holding("c", "n", (3, 800, 0))]
    assert [card for card, _, _ in granted(a_pod().gpu(1, milli=300), node, running)] == [1]


def test_equally_full_gpus_are_ordered_by_index() -> None:
    assert [card for card, _, _ in granted(a_pod().gpu(1, milli=300), a_node("n").gpus(3), [])] == [0]


def test_gpu_memory_can_run_out_before_milli() -> None:
    # 900 milli are free but only 40960 - 40000 = 960 MiB
    running = [holding("r", "n", (0, 100, 40_000))]
    asking = a_pod().gpu(1, milli=100, memory_mib=1_000)
    assert ask("gpu-fit", asking, [a_node("n").gpus(1)], running).codes("n") == ["GpuInsufficient"]
    # nothing stated: 100 / 1000 of 40960 = 4096 MiB are charged
    assert ask("gpu-fit", a_pod().gpu(1, milli=100), [a_node("n").gpus(1)], running).codes("n") == ["GpuInsufficient"]


def test_shares_fill_a_card_exactly() -> None:
    # 1000 / 400 = 2 shares per card, two cards: 4 pods
    deciding = scheduler([a_node("n").gpus(2)])
    placed = [deciding.schedule(built(a_pod(f"p{i}").gpu(1, milli=400))) for i in range(5)]
    assert [outcome.node for outcome in placed] == ["n", "n", "n", "n", None]
    assert [outcome.allocation.gpus[0].index for outcome in placed[:4]] == [0, 0, 1, 1]


# -- facts of a GPU -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("demand", "code"),
    [
        ({"memory_mib": 40_960}, None),
        ({"memory_mib": 40_961}, "GpuMemoryTooSmall"),
        ({"model": "A100"}, None),
        ({"model": "H100"}, "GpuModelMismatch"),
        ({"model": "A10"}, "GpuModelMismatch"),  # not a prefix of A100
        ({"model": "H100|A100"}, None),
        ({"vendor": "nvidia"}, None),
        ({"vendor": "amd"}, "GpuModelMismatch"),
        ({"cores": 6_912}, None),
        ({"cores": 6_913}, "GpuCoresTooFew"),
    ],
)
def test_each_fact_is_a_filter_with_its_own_reason(demand: dict[str, Any], code: str | None) -> None:
    answer = ask("gpu-fit", a_pod().gpu(1, **demand), [a_node("n").gpus(1, cores=6_912)])
    assert answer.codes("n") == ([] if code is None else [code])


def test_one_gpu_must_have_all_requested_facts() -> None:
    # One GPU is large enough, the other has the right model: neither has both.
    node = a_node("n").gpus(1, "A100-SXM4-40GB", 40_960).gpus(1, "Tesla-T4", 16_384)
    answer = ask("gpu-fit", a_pod().gpu(1, model="T4", memory_mib=20_000), [node])
    assert answer.codes("n") == ["GpuTooFewCards"]


def test_unknown_fact_does_not_satisfy_a_request_and_is_distinguished() -> None:
    answer = ask("gpu-fit", a_pod().gpu(1, memory_mib=1), [a_node("n").gpus(1, memory_mib=None)])
    [refusal] = answer.reasons["n"]
    assert (refusal.code, refusal.unknown) == ("GpuFactUnknown", True)


def test_known_gpus_may_suffice_next_to_unknown_ones() -> None:
    node = a_node("n").gpus(1, memory_mib=None).gpus(1)
    assert granted(a_pod().gpu(1, memory_mib=1_000), node, []) == [(1, 1000, A100)]


@pytest.mark.parametrize(("check", "fits"), [("all", False), ("model", False), ("count", True)])
def test_checks_can_be_limited(check: str, fits: bool) -> None:
    answer = ask("gpu-fit", a_pod().gpu(1, model="H100"), [a_node("n").gpus(1)], params={"check": check})
    assert answer.fits == {"n": fits}


def test_model_check_ignores_memory_and_cores() -> None:
    asking = a_pod().gpu(1, model="A100", memory_mib=99_999, cores=99_999)
    assert ask("gpu-fit", asking, [a_node("n").gpus(1)], params={"check": "model"}).feasible == ["n"]


# -- unlisted GPUs --------------------------------------------------------------------------------------------------


def test_gpu_count_gives_gpus_without_facts() -> None:
    node = a_node("n").offering("nvidia.com/gpu", 2)
    assert ask("gpu-fit", a_pod().gpu(2), [node]).feasible == ["n"]
    assert ask("gpu-fit", a_pod().gpu(1, model="A100"), [node]).codes("n") == ["GpuFactUnknown"]


def test_running_pods_without_gpu_indices_use_the_lowest_fitting_gpus() -> None:
    state = cluster(
        [a_node("n").gpus(3)], [holding("told", "n", (0, 1000, A100)), a_pod("silent").gpu(1).running_on("n")]
    )
    assert [card.index for card in state.placed_pods["default/silent"].allocation.gpus] == [1]


def test_removed_gpus_are_rejected_at_reservation() -> None:
    state, plugin = cluster([a_node("n").gpus(1)]), active("gpu-fit")
    request = state.compile(built(a_pod().gpu(1)))
    plugin.instance.pre_filter(request, state)
    state.assume(state.compile(built(a_pod("faster").gpu(1))), 0)
    answer = plugin.instance.reserve(request, 0, state)
    assert isinstance(answer, Refusal)
    assert answer == BUSY
