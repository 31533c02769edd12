"""The faults that the chaos tests counted, and the table of them at the end of a run.

A test takes the fixture `faults`, states its size and adds what it counts. It asserts that nothing was counted, so a
fault also fails the test. A test that ended before it counted has the result `failed`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

KINDS = ("lost", "bound twice", "leaked", "freed early")


class Faults(msgspec.Struct):
    """Faults counted by one test, by kind, with the size of the test in words."""

    test: str
    size: str = ""
    counts: dict[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    texts: list[str] = []

    def add(self, kind: str, found: Iterable[object]) -> None:
        """Count each fault of a kind. Raises: KeyError for an unknown kind."""
        for fault in found:
            self.counts[kind] += 1
            self.texts.append(f"{kind}: {fault}")

    def compare(self, bound: Sequence[Sequence[str]], held: Sequence[Sequence[str]]) -> None:
        """Compare bound pods and active reservations, both as pairs of a pod and its node."""
        pods, reserved = Counter(map(tuple, bound)), Counter(map(tuple, held))
        self.add("bound twice", [pair for pair, count in reserved.items() if count > 1])
        self.add("leaked", reserved.keys() - pods.keys())
        self.add("freed early", pods.keys() - reserved.keys())

    def assert_none(self, where: str = "") -> None:
        assert not self.texts, f"{where}: {self.texts[:20]}"


def is_clean(faults: Iterable[Faults]) -> bool:
    return not any(any(row.counts.values()) for row in faults)


def lines(faults: Iterable[Faults], reports: Iterable[Any]) -> list[str]:
    """Return the lines of the table.

    `reports` contains the reports of the tests of this run. Each chaos test that counts faults is a row, and the other
    chaos tests are counted by their results in the last line.
    """
    calls: dict[str, tuple[str, float]] = {}
    for report in reports:
        if "chaos" in report.keywords and (report.when == "call" or report.outcome != "passed"):
            result, seconds = calls.get(report.nodeid, ("passed", 0.0))
            calls[report.nodeid] = ("failed" if "failed" in (result, report.outcome) else report.outcome, seconds)
        if report.nodeid in calls:
            calls[report.nodeid] = (calls[report.nodeid][0], calls[report.nodeid][1] + report.duration)
    rows = [["test", "result", "min", *KINDS, "size"]]
    for row in faults:
        result, seconds = calls.pop(row.test, ("not finished", 0.0))
        counts = [str(row.counts[kind]) for kind in KINDS]
        rows.append([_name(row.test), result, f"{seconds / 60:.1f}", *counts, row.size or "-"])
    table = _aligned(rows) if len(rows) > 1 else []
    others = Counter(result for result, _ in calls.values())
    if table and others:
        table.append(f"Other fault tests: {_listed(others)}")
    return table


def _name(test: str) -> str:
    """Return `file[parameters]` of a test."""
    file, _, function = test.partition("::")
    stem = file.rpartition("/")[2].removeprefix("test_").removesuffix(".py")
    return f"{stem}{function[function.index('[') :] if '[' in function else ''}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {result}" for result, count in sorted(counts.items()))
