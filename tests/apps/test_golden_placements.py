"""Golden placements are checked on empty nodes, so only inventory and policy matter; a broken one is reported."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from hetsched.contracts.api.golden import Expectation, GoldenPlacementBroken
from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.inventory.actions import cordon
from hetsched.inventory.models import Cluster
from hetsched.journal import counters, metric_names
from hetsched.journal.models import AuditEntry, OutboxEvent
from hetsched.placement.queries.topics import snapshot
from hetsched.policies import golden_checks, goldens
from hetsched.policies.actions import activate, save_draft
from hetsched.policies.effective import active_specs
from hetsched.policies.golden_checks import check_goldens
from hetsched.policies.goldens import recheck_goldens, save_golden
from hetsched.policies.models import GoldenPlacement
from tests.builders import NodeBuilder, a_node, a_pod
from tests.situations import ALICE, a_cluster, placed

pytestmark = pytest.mark.django_db


def manifest(cpu: str = "1", **annotations: str) -> str:
    notes = ", ".join(f'"{key}": "{value}"' for key, value in annotations.items())
    container = f'{{name: c, image: "example.com/c", resources: {{requests: {{cpu: "{cpu}"}}}}}}'
    meta = f"{{name: g, annotations: {{{notes}}}}}"
    return f"{{apiVersion: v1, kind: Pod, metadata: {meta}, spec: {{containers: [{container}]}}}}"


def agreed(cluster: Cluster, text: str = "", name: str = "g", **expect: Any) -> GoldenPlacement:
    return save_golden(
        name, cluster=cluster, manifest=text or manifest(), expectation=Expectation(**expect), policy_name="hetsched",
        actor=ALICE, reason="agreed",
    )  # fmt: skip


def judged(cluster: Cluster, text: str = "", **expect: Any) -> tuple[str, str]:
    row = agreed(cluster, text, **expect)
    return row.state, row.got


def riscv(name: str, isa: str = "rv64gcv") -> NodeBuilder:
    return a_node(name).arch("riscv64", isa)


def test_placement_is_judged_on_empty_nodes() -> None:
    cluster = a_cluster(a_node("n1"), a_node("n2").cpu(2))
    placed(cluster, "n1", a_pod("all-of-it").cpu("8"))
    cordon(cluster, "n1", actor=ALICE, reason="disk")
    assert judged(cluster, manifest("4"), nodes=("n1",)) == ("kept", "n1")


def test_maintenance_does_not_break_golden_placements() -> None:
    """A GPU in maintenance will return, as a cordoned node will; an unhealthy one will not."""
    text = manifest(**{"oks/gpu-number": "1"})
    resting = a_cluster(a_node("n1").gpus(1, healthy=False, maintenance=True), name="resting")
    assert judged(resting, text, nodes=("n1",)) == ("kept", "n1")
    sick = a_cluster(a_node("n1").gpus(1, healthy=False), name="sick")
    assert judged(sick, text, nodes=("n1",))[0] == "broken"


@pytest.mark.parametrize(
    ("text", "expect", "found"),
    [
        (manifest(**{"hetsched.io/isa": "rv64gcv"}), {"nodes": ("vector",)}, ("kept", "vector")),
        (manifest(**{"hetsched.io/isa": "rv64gcv"}), {"nodes": ("plain", "other")}, ("broken", "vector")),
        (manifest(**{"hetsched.io/isa": "rv64gc"}), {"isa": "rv64gc"}, ("kept", None)),
        (manifest(**{"hetsched.io/isa": "rv64gc"}), {"selector": {"kubernetes.io/arch": "riscv64"}}, ("kept", None)),
        (manifest(**{"hetsched.io/isa": "rv64gc"}), {"selector": {"kubernetes.io/arch": "arm64"}}, ("broken", None)),
        (manifest("900"), {"verdict": "never-fits"}, ("kept", "never-fits")),
        (manifest(**{"hetsched.io/isa": "nonsense"}), {"verdict": "misconfigured"}, ("kept", "misconfigured")),
        (manifest(), {"verdict": "never-fits"}, ("broken", None)),
        (manifest("900"), {"nodes": ("plain",)}, ("broken", None)),
    ],
)
def test_each_kind_of_expectation(text: str, expect: dict[str, Any], found: tuple[str, str | None]) -> None:
    cluster = a_cluster(riscv("plain", "rv64gc"), riscv("vector"))
    state, got = judged(cluster, text, **expect)
    assert state == found[0]
    assert found[1] in (None, got)


def test_unknown_facts_leave_a_placement_unknown_and_block_nothing() -> None:
    cluster = a_cluster(a_node("n1").arch("riscv64"))  # its instruction set is not known
    state, got = judged(cluster, manifest(**{"hetsched.io/isa": "rv64gcv"}), nodes=("n1",))
    assert (state, "unknown" in got) == ("unknown", True)
    spec = active_specs({"hetsched"})["hetsched"]
    activate("hetsched", save_draft(spec, actor=ALICE).version, actor=ALICE, reason="again")
    entry = AuditEntry.objects.filter(action="policy.activate", object_name="hetsched").latest("id")
    assert entry.details["goldens"] == {"g": "unknown"}


def test_all_broken_placements_have_expected_and_actual_results() -> None:
    cluster = a_cluster(riscv("a-plain", "rv64gc"), riscv("vector"))
    vectors = manifest(**{"hetsched.io/isa": "rv64gcv"})
    agreed(cluster, vectors, "one", nodes=("vector",))
    agreed(cluster, vectors, "two", isa="rv64gcv")
    blind = save_draft(PolicySpec("hetsched", (PluginUse("resource-fit"),)), actor=ALICE)
    with pytest.raises(GoldenPlacementBroken) as refused:
        activate("hetsched", blind.version, actor=ALICE, reason="simpler")
    assert [(verdict.golden, verdict.expected, verdict.got.split()[0]) for verdict in refused.value.broken] == [
        ("one", "on vector", "a-plain"), ("two", "a node that runs rv64gcv natively", "a-plain"),
    ]  # fmt: skip
    assert check_goldens(blind.spec).broken == 2


def test_broken_placement_is_published_and_audited() -> None:
    vectors = manifest(**{"hetsched.io/isa": "rv64gcv"})
    cluster = a_cluster(riscv("vector"), riscv("plain", "rv64gc"))
    agreed(cluster, vectors, nodes=("vector",))
    assert recheck_goldens(timezone.now()) == {"kept": 1, "broken": 0, "unknown": 0}
    published = OutboxEvent.objects.filter(topic="goldens").count()
    recheck_goldens(timezone.now())
    assert OutboxEvent.objects.filter(topic="goldens").count() == published  # nothing changed, so nothing is checked

    a_cluster(riscv("vector", "rv64gc"), riscv("plain", "rv64gc"))
    assert recheck_goldens(timezone.now()) == {"kept": 0, "broken": 1, "unknown": 0}
    row = GoldenPlacement.objects.get()
    assert (row.state, row.broken_since) == ("broken", row.checked_at)
    assert snapshot("goldens").data["g"]["state"] == "broken"
    assert AuditEntry.objects.filter(action="golden.broken", object_name="g").count() == 1
    assert {sample.labels: sample.value for sample in counters.samples(metric_names.GOLDENS)} == {
        ("kept",): 0.0, ("broken",): 1.0, ("unknown",): 0.0,
    }  # fmt: skip

    a_cluster(riscv("vector"), riscv("plain", "rv64gc"))
    recheck_goldens(timezone.now())
    assert (GoldenPlacement.objects.get().state, GoldenPlacement.objects.get().broken_since) == ("kept", None)
    assert AuditEntry.objects.filter(action="golden.kept").count() == 1


def test_golden_placements_are_deleted_with_their_cluster() -> None:
    cluster = a_cluster(a_node("n1"))
    agreed(cluster, nodes=("n1",))
    cluster.delete()
    assert recheck_goldens(timezone.now()) == {"kept": 0, "broken": 0, "unknown": 0}


@pytest.mark.django_db(transaction=True)
def test_nodes_are_read_before_locks_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = a_cluster(a_node("n1"))
    locked: list[bool] = []
    read = golden_checks._empty_state

    def noted(*given: Any) -> Any:
        locked.append(connection.in_atomic_block)
        return read(*given)

    monkeypatch.setattr(golden_checks, "_empty_state", noted)
    agreed(cluster, nodes=("n1",))
    GoldenPlacement.objects.update(judged_on="")
    recheck_goldens(timezone.now())
    assert locked == [False, True, False, True]  # code with locks uses the values that were read before


def test_failing_evaluation_does_not_block_others(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = a_cluster(a_node("n1"))
    for name in ("a", "b"):
        agreed(cluster, name=name, nodes=("n1",))
    GoldenPlacement.objects.update(judged_on="", state="unknown")

    def look(row: GoldenPlacement, *given: Any) -> None:
        if row.name == "a":
            raise RuntimeError("whatever")
        real(row, *given)

    real = goldens._check_and_save
    monkeypatch.setattr(goldens, "_check_and_save", look)
    assert recheck_goldens(timezone.now()) == {"kept": 1, "unknown": 1, "broken": 0}
