"""Facts of several sources are merged into one report; shrunk and grown facts are distinguished from other changes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hetsched.adapters.node_facts.acceptance import accept
from hetsched.adapters.node_facts.fact_text import fact_texts
from hetsched.adapters.node_facts.report_merge import merge_reports, newer
from hetsched.contracts.objects.facts import MOST_KEPT, Claims, conflicts, record_claim
from hetsched.contracts.objects.node_report import IsaReport, NodeReport, NumaReport, NumaZone, Usage
from tests.builders import a_card, a_node

NOW = "2026-11-21T10:00:00Z"
GIB = 2**30


def zone(name: str, cpus: str, gib: int = 16) -> NumaZone:
    return NumaZone(name, cpus, capacity={"memory": gib * GIB}, allocatable={"memory": gib * GIB})


def report(*zones: NumaZone, uid: str = "a", **more: Any) -> NodeReport:
    made = a_node("n").build()
    numa = NumaReport(zones) if zones else None
    return msgspec.structs.replace(made, uid=uid, numa=numa, **more)


def accepted(known: NodeReport, reported: NodeReport, **more: Any) -> Any:
    return accept(known, reported, growth=2.0, now=NOW, **more)


def changes(found: Any) -> list[tuple[str, str, str]]:
    return [(item.fact, item.item, item.change) for item in found.quarantined]


class TestSources:
    def test_agent_facts_come_first_and_others_fill_the_gaps(self) -> None:
        base = report(
            NumaZone("node-0", "0-7", offline_capacity_millis=4000), isa=IsaReport("x86-64-v1", cross=("rv64gc",))
        )
        reported = report(zone("node-0", "0-3"), isa=IsaReport("x86-64-v3", source="agent"))
        both = merge_reports(base, reported)
        assert (both.isa.native, both.isa.cross) == ("x86-64-v3", ("rv64gc",))
        assert both.numa is not None
        assert (both.numa.zones[0].cpus, both.numa.zones[0].offline_capacity_millis) == ("0-3", 4000)

    def test_lower_capacity_is_used(self) -> None:
        base = report(allocatable={"cpu": 8000, "memory": 8 * GIB, "pods": 110})
        reported = report(allocatable={"cpu": 6000, "memory": 9 * GIB, "hetsched.io/network-mbps": 1000})
        expected = {"cpu": 6000, "memory": 8 * GIB, "pods": 110, "hetsched.io/network-mbps": 1000}
        assert merge_reports(base, reported).allocatable == expected

    def test_gpu_facts_are_merged_by_uuid(self) -> None:
        base = report(gpus=(a_card(0, uuid="A", cores=6912), a_card(1, uuid="B", cores=1)))
        reported = report(gpus=(a_card(0, uuid="B", cores=None), a_card(1, uuid="A", cores=None)))
        assert [card.cores for card in merge_reports(base, reported).gpus or ()] == [1, 6912]

    def test_unknown_facts_do_not_replace_known_ones(self) -> None:
        base = report(zone("node-0", "0-7"), gpus=(a_card(0),))
        assert merge_reports(base, NodeReport("n")).gpus == base.gpus
        assert merge_reports(base, NodeReport("n")).numa == base.numa
        assert merge_reports(base, NodeReport("n", gpus=())).gpus == ()

    def test_latest_sample_is_used(self) -> None:
        early, late = Usage({"cpu": 1}, "2026-11-21T10:00:00Z"), Usage({"cpu": 2}, "2026-11-21T11:00:00+01:00")
        assert newer(early, late) is late  # the same time: the second source
        assert newer(Usage({"cpu": 3}, "2026-11-21T10:00:01Z"), late).amounts == {"cpu": 3}  # type: ignore[union-attr]


class TestCpus:
    KNOWN = report(zone("node-0", "0-3"), zone("node-1", "4-7"))

    def test_missing_zone_is_lost_and_stays_known(self) -> None:
        found = accepted(self.KNOWN, report(zone("node-0", "0-3"), zone("node-1", "4-5")))
        assert (found.report.numa.lost_cpus, [z.cpus for z in found.report.numa.zones]) == ("6-7", ["0-3", "4-5"])
        assert [z.cpus for z in found.known.numa.zones] == ["0-3", "4-7"]
        assert changes(found) == [("numa", "CPUs", "shrunk")]

    def test_deleted_zone_stays_known(self) -> None:
        found = accepted(self.KNOWN, report(zone("node-0", "0-3", 32)))
        assert (found.report.numa.lost_cpus, len(found.known.numa.zones)) == ("4-7", 2)

    def test_unreported_zones_are_lost(self) -> None:
        found = accepted(self.KNOWN, report())
        assert (found.report.numa.zones, found.report.numa.lost_cpus) == ((), "0-7")

    def test_returned_part_leaves_quarantine(self) -> None:
        first = accepted(self.KNOWN, report(zone("node-0", "0-3"), zone("node-1", "4-5")))
        again = accepted(first.known, self.KNOWN, quarantined=first.quarantined)
        assert (again.quarantined, again.report.numa.lost_cpus) == ((), None)

    def test_cpus_that_move_to_another_zone_are_not_lost(self) -> None:
        assert accepted(self.KNOWN, report(zone("node-0", "0-7", 32))).quarantined == ()

    def test_twice_as_many_count_and_more_do_not(self) -> None:
        assert accepted(self.KNOWN, report(zone("node-0", "0-7"), zone("node-1", "8-15"))).quarantined == ()
        found = accepted(self.KNOWN, report(zone("node-0", "0-7"), zone("node-1", "8-16")))  # 17 > 2 x 8
        assert changes(found)[0] == ("numa", "CPUs", "grown")

    def test_reduced_memory_is_accepted_at_once_and_reported(self) -> None:
        found = accepted(self.KNOWN, report(zone("node-0", "0-3", 8), zone("node-1", "4-7")))
        assert found.report.numa.zones[0].capacity["memory"] == 8 * GIB
        assert changes(found) == [("numa", "memory", "shrunk")]
        # 32 GiB known, 31.7 reported: another kernel.
        slightly = [
            NumaZone(name, cpus, capacity={"memory": int(15.85 * GIB)})
            for name, cpus in (("node-0", "0-3"), ("node-1", "4-7"))
        ]
        assert accepted(self.KNOWN, report(*slightly)).quarantined == ()


class TestCards:
    KNOWN = report(gpus=tuple(a_card(i, uuid=f"G{i}") for i in range(3)))

    def cards(self, found: Any) -> list[tuple[int, str, bool]]:
        return [(card.index, card.uuid, card.healthy) for card in found.report.gpus]

    def test_gpus_after_a_missing_one_keep_their_index(self) -> None:
        reported = report(gpus=(a_card(0, uuid="G0"), a_card(1, uuid="G2")))
        found = accepted(self.KNOWN, reported)
        assert self.cards(found) == [(0, "G0", True), (1, "G1", False), (2, "G2", True)]
        assert changes(found) == [("gpu", "G1", "shrunk")]

    def test_new_gpu_takes_an_unused_index(self) -> None:
        reported = report(gpus=(a_card(0, uuid="NEW"), *(a_card(i + 1, uuid=f"G{i}") for i in range(3))))
        found = accepted(self.KNOWN, reported)
        assert changes(found) == [("gpu", "NEW", "grown")]
        approved = accepted(self.KNOWN, reported, approved=[found.quarantined[0].id])
        assert self.cards(approved)[3] == (3, "NEW", True)

    def test_new_gpus_of_a_trusted_node_are_accepted(self) -> None:
        reported = report(gpus=tuple(a_card(i, uuid=f"G{i}") for i in range(4)))
        assert accepted(self.KNOWN, reported, trusted_cards=True).quarantined == ()

    def test_split_gpu_is_reported(self) -> None:
        problem = "CardSplit: card 1 is not a whole card: it has 2 MIG devices"
        reported = report(gpus=(a_card(0, uuid="G0"), a_card(2, uuid="G2")), problems=(problem,))
        assert accepted(self.KNOWN, reported).quarantined[0].reported == problem

    def test_unlistable_gpus_get_no_new_pods(self) -> None:
        found = accepted(self.KNOWN, report(gpus=None))
        assert [healthy for _, _, healthy in self.cards(found)] == [False] * 3

    def test_rejected_loss_is_ignored_until_another_report(self) -> None:
        reported = report(gpus=(a_card(0, uuid="G0"), a_card(1, uuid="G1")))
        earlier = tuple(
            msgspec.structs.replace(item, state="rejected") for item in accepted(self.KNOWN, reported).quarantined
        )
        again = accepted(self.KNOWN, reported, quarantined=earlier)
        assert self.cards(again)[2] == (2, "G2", True)

    def test_first_report_is_accepted_unchanged(self) -> None:
        reported = report(gpus=tuple(a_card(i, uuid=f"N{i}") for i in range(8)))
        assert accepted(report(gpus=()), reported, first=True).quarantined == ()


class TestKnownGpus:
    KNOWN = report(gpus=(a_card(0, "Tesla-T4", 15360, uuid="G0", cores=2560),))

    def reported(self, **changed: Any) -> NodeReport:
        assert self.KNOWN.gpus is not None
        return report(gpus=(msgspec.structs.replace(self.KNOWN.gpus[0], **changed),))

    def offers(self, found: Any) -> tuple[str, int, int]:
        (card,) = found.report.gpus
        return card.model, card.memory_mib, card.cores

    def test_other_gpu_model_requires_approval(self) -> None:
        reported = self.reported(model="H100-SXM5-80GB", memory_mib=8_000_000, cores=16896)
        found = accepted(self.KNOWN, reported)
        assert self.offers(found) == ("Tesla-T4", 15360, 2560)
        assert changes(found) == [("gpu", "G0", "grown")]
        assert found.quarantined[0].reported == "H100-SXM5-80GB, 8000000 MiB, 16896 cores"
        again = accepted(found.known, reported, quarantined=found.quarantined)
        assert (self.offers(again), again.quarantined) == (self.offers(found), found.quarantined)
        approved = accepted(again.known, reported, quarantined=again.quarantined, approved=[found.quarantined[0].id])
        assert self.offers(approved) == ("H100-SXM5-80GB", 8_000_000, 16896)
        assert accepted(approved.known, reported).quarantined == ()

    @pytest.mark.parametrize("model", ["NVIDIA T4", "tesla_t4", None])
    def test_alias_or_missing_gpu_model_is_accepted(self, model: str | None) -> None:
        assert accepted(self.KNOWN, self.reported(model=model)).quarantined == ()

    def test_longer_model_name_may_be_another_model(self) -> None:
        known = report(gpus=(a_card(0, "RTX 6000", uuid="G0"),))
        reported = report(gpus=(a_card(0, "RTX 6000 Ada Generation", uuid="G0"),))
        assert changes(accepted(known, reported)) == [("gpu", "G0", "grown")]

    @pytest.mark.parametrize(("fact", "most"), [("memory_mib", 30720), ("cores", 5120)])
    def test_twice_as_much_counts_and_more_does_not(self, fact: str, most: int) -> None:
        # 30720 = 2 x 15360 MiB, 5120 = 2 x 2560 cores
        found = accepted(self.KNOWN, self.reported(**{fact: most}))
        assert (getattr(found.report.gpus[0], fact), found.quarantined) == (most, ())
        # Neither small steps nor a pause lead beyond one.
        paused = accepted(found.known, self.reported(model=None, **{fact: None}))
        found = accepted(paused.known, self.reported(**{fact: most + 1}))
        assert self.offers(found) == ("Tesla-T4", 15360, 2560)
        assert changes(found) == [("gpu", "G0", "grown")]

    def test_reduction_applies_immediately_despite_other_growth(self) -> None:
        assert self.offers(accepted(self.KNOWN, self.reported(memory_mib=8192))) == ("Tesla-T4", 8192, 2560)
        found = accepted(self.KNOWN, self.reported(memory_mib=8192, cores=9999))
        assert self.offers(found) == ("Tesla-T4", 8192, 2560)

    @pytest.mark.parametrize("nothing", [None, 0])
    def test_previously_unknown_fact_is_accepted_at_once(self, nothing: int | None) -> None:
        known = report(gpus=(a_card(0, "Tesla-T4", nothing, uuid="G0"),))
        found = accepted(known, self.reported())
        assert (self.offers(found), found.quarantined) == (("Tesla-T4", 15360, 2560), ())
        assert changes(accepted(found.known, self.reported(cores=5121))) == [("gpu", "G0", "grown")]

    def test_gpu_without_a_uuid_is_identified_by_index(self) -> None:
        known = report(gpus=(a_card(0, "Tesla-T4", 15360),))
        found = accepted(known, report(gpus=(a_card(0, "H100-SXM5-80GB", 81559),)))
        assert changes(found) == [("gpu", "card 0", "grown")]

    def test_quarantined_gpu_can_become_unhealthy(self) -> None:
        reported = self.reported(memory_mib=99_999, healthy=False)
        found = accepted(self.KNOWN, reported)
        assert found.report.gpus[0].healthy is False
        earlier = tuple(msgspec.structs.replace(item, state="rejected") for item in found.quarantined)
        assert self.offers(accepted(found.known, reported, quarantined=earlier)) == ("Tesla-T4", 15360, 2560)

    def test_trusted_source_may_set_the_gpu_model(self) -> None:
        reported = self.reported(model="H100-SXM5-80GB", memory_mib=81559)
        assert self.offers(accepted(self.KNOWN, reported, trusted_cards=True)) == ("H100-SXM5-80GB", 81559, 2560)


class TestAnotherMachineOfTheName:
    def test_replaced_machine_is_accepted_except_for_missing_parts(self) -> None:
        old = report(zone("node-0", "0-7"), gpus=tuple(a_card(i, uuid=f"G{i}") for i in range(2)))
        new = report(zone("node-0", "0-3", 64), uid="b", gpus=(a_card(0, uuid="H0"),))
        found = accepted(old, new)
        assert found.report.numa.lost_cpus == "4-7"
        assert [(card.index, card.uuid, card.healthy) for card in found.report.gpus] == [
            (0, "H0", True),
            (1, "G1", False),
        ]
        assert {change for _, _, change in changes(found)} == {"shrunk"}


def test_tenfold_capacity_is_not_accepted() -> None:
    known = report(allocatable={"cpu": 8000, "memory": 8 * GIB, "pods": 110})
    reported = report(allocatable={"cpu": 80_000, "memory": 8 * GIB, "pods": 110, "nvidia.com/gpu": 8})
    found = accepted(known, reported)
    assert found.report.allocatable == {"cpu": 8000, "memory": 8 * GIB, "pods": 110, "nvidia.com/gpu": 8}
    assert changes(found) == [("allocatable", "cpu", "grown")]
    assert accepted(known, reported, approved=[found.quarantined[0].id]).report.allocatable["cpu"] == 80_000


@pytest.mark.parametrize("steps", [(1500, 2000, 2001), (0, 2001), (None, 2001), (1999, None, 2001)])
def test_repeated_small_increases_are_limited_like_one(steps: tuple[int | None, ...]) -> None:
    def of(mbps: int | None) -> NodeReport:
        return report(allocatable={"cpu": 8000} if mbps is None else {"cpu": 8000, "hetsched.io/network-mbps": mbps})

    found = accepted(of(1000), of(1000))
    for step in steps:
        assert found.quarantined == ()
        found = accepted(found.known, of(step))
    assert changes(found) == [("allocatable", "hetsched.io/network-mbps", "grown")]  # 2001 > 2 x 1000
    # Once approved, later amounts are compared with that one: 4002 = 2 x 2001.
    approved = accepted(found.known, of(2001), approved=[found.quarantined[0].id])
    assert accepted(approved.known, of(4002)).quarantined == ()
    assert changes(accepted(approved.known, of(4003))) == changes(found)


def test_replaced_machine_is_compared_with_its_own_amounts() -> None:
    old = report(allocatable={"cpu": 8000, "hetsched.io/network-mbps": 1000})
    new = accepted(old, report(uid="b", allocatable={"cpu": 64_000}))
    reported = report(uid="b", allocatable={"cpu": 64_000, "hetsched.io/network-mbps": 100_000})
    assert accepted(new.known, reported).quarantined == ()


class TestClaims:
    def test_equal_value_is_confirmed_and_changed_value_is_added(self) -> None:
        claims: Claims = {}
        for at, text in (("1", "a"), ("2", "a"), ("3", "b")):
            claims = record_claim(claims, "agent", {"isa": text}, at)
        assert [(fact.text, fact.first_at, fact.last_at, fact.current) for fact in claims["isa"]] == [
            ("b", "3", "3", True), ("a", "1", "2", False),
        ]  # fmt: skip

    def test_history_is_bounded_and_keeps_current_reports(self) -> None:
        claims = record_claim({}, "file", {"isa": "x"}, "0")
        for number in range(50):
            claims = record_claim(claims, "agent", {"isa": str(number)}, str(number))
        assert len(claims["isa"]) == MOST_KEPT
        assert {statement.text for statement in claims["isa"] if statement.current} == {"x", "49"}

    @pytest.mark.parametrize(
        ("other", "expected"), [("x86-64-v3", False), ("x86-64-v4", True), ("at least x86-64-v1", False)]
    )
    def test_conflict_uses_only_current_sources(self, other: str, expected: bool) -> None:
        claims = record_claim(record_claim({}, "file", {"isa": other}, "1"), "agent", {"isa": "x86-64-v3"}, "2")
        assert conflicts(claims["isa"]) is expected

    def test_fact_without_a_report_expires(self) -> None:
        claims = record_claim(
            record_claim({}, "agent", fact_texts(report(zone("node-0", "0-3"))), "1"), "agent", {}, "2"
        )
        assert not any(statement.current for statements in claims.values() for statement in statements)
