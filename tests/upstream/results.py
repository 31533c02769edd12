"""Results of test runs: read reports, compare two schedulers and print the table."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

# Test name: whether it passed. Skipped tests are left out.
Results = Mapping[str, bool]
_GO = re.compile(r"^\s*--- (PASS|FAIL|SKIP): (\S+)", re.MULTILINE)


def of_go_log(text: str) -> dict[str, bool]:
    """Read the output of `go test -v`; return the results of tests without subtests."""
    found = {name: result for result, name in _GO.findall(text)}
    parents = {name.rpartition("/")[0] for name in found}
    parents |= {parent.rpartition("/")[0] for parent in parents}
    return {
        name: result == "PASS" for name, result in found.items() if result != "SKIP" and name not in parents
    }  # fmt: skip


def of_junit(path: Path) -> dict[str, bool]:
    """Read the report of an e2e run; setup nodes of the suite are left out."""
    results = {}
    for case in ElementTree.parse(path).iter("testcase"):
        name, status = case.get("name", ""), case.get("status")
        if name.startswith("[It] ") and status != "skipped":
            results[name.removeprefix("[It] ")] = status == "passed"
    return results


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The results of one set with kube-scheduler and with hetsched."""

    name: str
    expected: Results
    actual: Results

    @property
    def run(self) -> int:
        return len(self.expected.keys() | self.actual.keys())

    @property
    def failed(self) -> list[str]:
        """Return the tests that pass with kube-scheduler and do not pass with hetsched."""
        return sorted(name for name, passed in self.expected.items() if passed and not self.actual.get(name))

    def unexplained(self, differences: Mapping[str, str]) -> list[str]:
        return [name for name in self.failed if reason_of(name, differences) is None]

    def is_failed(self, differences: Mapping[str, str]) -> bool:
        """Return whether hetsched fails a test for no documented reason, or kube-scheduler passed none."""
        return not any(self.expected.values()) or bool(self.unexplained(differences))

    @property
    def row(self) -> str:
        passed = [sum(results.values()) for results in (self.expected, self.actual)]
        return f"| {self.name} | {self.run} | {passed[0]} | {passed[1]} | {len(self.failed)} |"


def reason_of(name: str, differences: Mapping[str, str]) -> str | None:
    """Return the documented reason for a test that only hetsched fails, None if there is none."""
    return next((reason for pattern, reason in differences.items() if re.search(pattern, name)), None)


def report(comparisons: list[Comparison], differences: Mapping[str, str]) -> str:
    """Return the table of all sets and the tests that only hetsched fails."""
    lines = ["| set | run | kube-scheduler passed | hetsched passed | only hetsched fails |", "|---|---|---|---|---|"]
    lines += [comparison.row for comparison in comparisons]
    for comparison in comparisons:
        for name in comparison.failed:
            reason = reason_of(name, differences)
            lines.append(f"{comparison.name}: {name}: {f'documented: {reason}' if reason else 'UNEXPLAINED'}")
    return "\n".join(lines)
