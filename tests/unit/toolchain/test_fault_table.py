"""The table of counted faults at the end of the chaos tests."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests import fault_table
from tests.fault_table import Faults


def report(test: str, outcome: str = "passed", when: str = "call", **marks: int) -> SimpleNamespace:
    return SimpleNamespace(nodeid=test, outcome=outcome, when=when, duration=30.0, keywords=marks)


def test_reservations_are_compared_with_bound_pods() -> None:
    faults = Faults("t")
    faults.compare([["a", "n1"], ["b", "n1"]], [["a", "n1"], ["a", "n1"], ["c", "n2"]])
    assert faults.counts == {"lost": 0, "bound twice": 1, "leaked": 1, "freed early": 1}
    assert not fault_table.is_clean([faults])
    with pytest.raises(AssertionError, match=r"round 3.*leaked"):
        faults.assert_none("round 3")


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(KeyError):
        Faults("t").add("misplaced", ["a"])


def test_table_has_one_row_per_fault_test_and_counts_the_others() -> None:
    first, second = Faults("tests/kube/test_kills.py::test_a[x]", "3 kills"), Faults("tests/test_b.py::test_b")
    second.add("lost", ["p"])
    reports = [
        report(first.test, chaos=1), report(second.test, "failed", chaos=1), report("tests/c.py::test_c", chaos=1),
        report("tests/d.py::test_d"), report("tests/e.py::test_e", "skipped", "setup", chaos=1),
    ]  # fmt: skip
    table = fault_table.lines([first, second], reports)
    assert table[1].split() == ["kills[x]", "passed", "0.5", "0", "0", "0", "0", "3", "kills"]
    assert table[2].split() == ["b", "failed", "0.5", "1", "0", "0", "0", "-"]
    assert table[3] == "Other fault tests: 1 passed, 1 skipped"


def test_run_without_counted_faults_has_no_table() -> None:
    assert fault_table.lines([], [report("tests/c.py::test_c", chaos=1)]) == []
