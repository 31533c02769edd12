"""The results of a load run, as a JSON document and an HTML page.

Every duration has its count, percentiles and maximum. Every response is counted by class. Every goal is reached, missed
or not measured. Each part describes the machine, its other load before and after the run, and the processor time of
each program, because only the latter is comparable on a shared machine. The page is one file without scripts or
external resources.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from hetsched.contracts.times import rfc3339
from hetsched.lab.bench.measure import machine
from hetsched.lab.plots import PlotLine, line_chart
from hetsched.lab.report import Cell, data_table, whole_page

from .client import percentiles

_HELD = {True: "held", False: "MISSED", None: "not measured"}


class Durations(msgspec.Struct, frozen=True, rename="camel"):
    """Durations of an operation over n runs; a percentile is the value that this share of the runs did not exceed."""

    what: str
    n: int
    milliseconds: dict[str, float]


class Goal(msgspec.Struct, frozen=True):
    """A goal and its result; `held` is null if the goal was not measured."""

    what: str
    goal: str
    found: str
    held: bool | None


class Part(msgspec.Struct, frozen=True, rename="camel"):
    """One scenario on one kind of database."""

    scenario: str
    backend: str
    size: dict[str, Any]
    goals: list[Goal]
    durations: list[Durations]
    answers: dict[str, int]
    load_average: dict[str, list[float]]
    processor_millis_each: dict[str, float]
    memory_mib: dict[str, float]
    counts: dict[str, int] = {}
    lines: dict[str, list[tuple[float, float]]] = {}
    notes: list[str] = []

    @property
    def held(self) -> bool:
        return all(goal.held is not False for goal in self.goals)


class Report(msgspec.Struct, frozen=True):
    """A whole run."""

    scenario: str
    began: str
    machine: dict[str, Any]
    parts: list[Part]


def durations(what: str, seconds: Sequence[float]) -> Durations:
    """Summarise durations."""
    return Durations(what, len(seconds), dict(percentiles(list(seconds))))


def at_most(what: str, goal: float, found: float | None, unit: str) -> Goal:
    """Compare a value with its maximum."""
    text = "-" if found is None else f"{found:,.4g} {unit}"
    return Goal(what, f"<= {goal:,g} {unit}", text, None if found is None else found <= goal)


def none_of(what: str, found: int) -> Goal:
    """Compare a count with zero. Zero of n is not a proof: with 95 % confidence, the rate is below 3 in n."""
    return Goal(what, "0", str(found), found == 0)


def write(parts: Sequence[Part], folder: Path, name: str) -> Report:
    """Write `NAME.json` and `NAME.html`; return the document."""
    report = Report(name, rfc3339(datetime.now(UTC)), machine(), list(parts))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))
    (folder / f"{name}.html").write_text(_page(report))
    return report


def text(part: Part) -> str:
    """Return a part as text for a terminal."""
    lines = [f"\n{part.scenario}, {part.backend}: {_facts(part.size)}"]
    lines += [f"  {_HELD[goal.held]:12} {goal.what}: {goal.found} (goal {goal.goal})" for goal in part.goals]
    for duration in part.durations:
        lines.append(f"  {duration.what}, ms, n {duration.n}: {_facts(duration.milliseconds)}")
    lines.append(f"  answers: {_facts(part.answers)}; {_facts(part.counts)}")
    lines.append(f"  processor time, ms each: {_facts(part.processor_millis_each)}; MiB: {_facts(part.memory_mib)}")
    lines.append(f"  load average before {part.load_average['before']}, after {part.load_average['after']}")
    return "\n".join([*lines, *(f"  {note}" for note in part.notes)])


def _facts(facts: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def _page(report: Report) -> str:
    shown = [f"<p>{report.began}</p>", data_table(["machine", ""], [[n, str(v)] for n, v in report.machine.items()])]
    for part in report.parts:
        shown.append(f"<h2>{part.scenario}, {part.backend}</h2><p>{_facts(part.size)}</p>")
        goals: list[list[Cell]] = [[g.what, g.goal, g.found, _HELD[g.held]] for g in part.goals]
        shown.append(data_table(["goal", "wanted", "found", ""], goals))
        names = list(dict.fromkeys(name for duration in part.durations for name in duration.milliseconds))
        rows: list[list[Cell]] = [
            [duration.what, duration.n, *(duration.milliseconds.get(name) for name in names)]
            for duration in part.durations
        ]
        shown.append(data_table(["duration, ms", "n", *names], rows))
        shown.append(data_table(["answer", "how many"], [[name, count] for name, count in part.answers.items()]))
        counts: list[list[Cell]] = [[name, count] for name, count in part.counts.items()]
        shown += [data_table(["count", ""], counts)] if counts else []
        programs = {**part.processor_millis_each, **part.memory_mib}
        cells: list[list[Cell]] = [
            [name, part.processor_millis_each.get(name), part.memory_mib.get(name)] for name in programs
        ]
        shown.append(data_table(["program", "processor time, ms each", "memory, MiB"], cells))
        for title, points in part.lines.items():
            chart = line_chart(title, [PlotLine(title, tuple(points))], x_label="seconds", y_label=title)
            table = data_table(["seconds", title], [[round(x, 1), round(y, 2)] for x, y in points])
            shown.append(f"<figure>{chart}</figure><details><summary>{title}</summary>{table}</details>")
        load = part.load_average
        shown.append(f"<p>Load average before {load['before']}, after {load['after']}.</p>")
        shown += [f"<p>{note}</p>" for note in part.notes]
    return whole_page(f"hetsched under load: {report.scenario}", shown)
