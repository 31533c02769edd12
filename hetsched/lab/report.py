"""Report files of a policy comparison: one HTML page with plots, and CSV for further computation.

Every chart is shown with its table. The page is one file without scripts or external resources.
Files: `index.html`, `summary.csv` (one row per policy), `samples.csv` (measurements during the run), `placements.csv`
(one row per pod, one column per policy).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from html import escape
from importlib.resources import files

import msgspec

from hetsched.contracts.documents import to_plain

from .plots import PlotLine, bar_chart, line_chart, number_text
from .replay import Replay, ReplaySample

_METRICS = {
    "cpuUtilization": "CPU requested / allocatable",
    "memoryUtilization": "Memory requested / allocatable",
    "gpuAllocation": "GPU capacity allocated / total",
    "unallocatedGpus": "Unallocated GPUs",
    "gpuFragmentation": "GPU capacity that the workload mix cannot use / total",
    "balance": "Mean over nodes of 1 - variance of their utilisations",
}
_LINES = ("gpuAllocation", "gpuFragmentation", "cpuUtilization", "memoryUtilization", "balance")

Cell = str | int | float | None


class PolicyRun(msgspec.Struct, frozen=True):
    """Result of one policy with its samples."""

    result: Replay
    samples: tuple[ReplaySample, ...]


def report_files(title: str, facts: Sequence[tuple[str, str]], runs: Sequence[PolicyRun]) -> dict[str, bytes]:
    """Return the content of every file of the report, by name; `facts` describe the inputs."""
    return {
        "index.html": _page(title, facts, runs).encode(),
        "summary.csv": _csv(*_summary(runs)),
        "samples.csv": _csv(*_samples(runs)),
        "placements.csv": _csv(*_placements(runs)),
    }


def _summary(runs: Sequence[PolicyRun]) -> tuple[list[str], list[list[Cell]]]:
    rows: list[list[Cell]] = []
    for run in runs:
        metrics = to_plain(run.result.metrics)
        counts: list[Cell] = [run.result.policy, run.result.placed, run.result.pending]
        rows.append([*counts, *(metrics[name] for name in _METRICS), run.result.decisions_per_second])
    return ["policy", "placed", "pending", *_METRICS, "decisionsPerSecond"], rows


def _samples(runs: Sequence[PolicyRun]) -> tuple[list[str], list[list[Cell]]]:
    rows: list[list[Cell]] = []
    for run in runs:
        for sample in run.samples:
            metrics = to_plain(sample.metrics)
            moment: list[Cell] = [run.result.policy, sample.arrived, sample.arrived_gpu_ratio, sample.pending]
            rows.append([*moment, *(metrics[name] for name in _METRICS)])
    return ["policy", "arrived", "arrivedGpuRatio", "pending", *_METRICS], rows


def _placements(runs: Sequence[PolicyRun]) -> tuple[list[str], list[list[Cell]]]:
    nodes = [{row.pod: row.node for row in run.result.placements} for run in runs]
    pods = [row.pod for row in runs[0].result.placements] if runs else []
    return ["pod", *(run.result.policy for run in runs)], [[pod, *(of.get(pod) for of in nodes)] for pod in pods]


def _csv(header: list[str], rows: list[list[Cell]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([["" if cell is None else cell for cell in row] for row in rows])
    return text.getvalue().encode()


# -- the page --------------------------------------------------------------------------------------------------------


def _page(title: str, facts: Sequence[tuple[str, str]], runs: Sequence[PolicyRun]) -> str:
    header, rows = _summary(runs)
    parts = [
        data_table(["", ""], [list(fact) for fact in facts], headless=True),
        "<h2>Result</h2>",
        data_table(header, rows),
        *(_lines(name, runs) for name in ("pending", *_LINES) if _has_values(name, runs)),
        *(_bars(name, runs) for name in _METRICS if _has_values(name, runs)),
    ]
    return whole_page(title, parts)


def whole_page(title: str, parts: Sequence[str]) -> str:
    """Return one HTML document with this heading; the parts are HTML."""
    style = (files("hetsched.lab") / "report.css").read_text()
    body = "\n".join([f"<h1>{escape(title)}</h1>", *parts])
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _has_values(name: str, runs: Sequence[PolicyRun]) -> bool:
    return name == "pending" or any(to_plain(run.result.metrics)[name] is not None for run in runs)


def _lines(name: str, runs: Sequence[PolicyRun]) -> str:
    by_demand = all(sample.arrived_gpu_ratio is not None for run in runs for sample in run.samples)
    series = [
        PlotLine(run.result.policy, tuple((_across(sample, by_demand), _value(sample, name)) for sample in run.samples))
        for run in runs
    ]
    x_label = "arrived GPU demand / capacity" if by_demand else "arrived pods"
    meaning = "Pods that did not fit on any node" if name == "pending" else _METRICS[name]
    chart = line_chart(f"{meaning}, over {x_label}", series, x_label=x_label, y_label=name)
    rows: list[list[Cell]] = [
        [_across(column[0], by_demand), *(_value(sample, name) for sample in column)]
        for column in zip(*(run.samples for run in runs), strict=True)
    ]
    return _figure(f"{name} over {x_label}", meaning, chart, [x_label, *(run.result.policy for run in runs)], rows)


def _across(sample: ReplaySample, by_demand: bool) -> float:
    return sample.arrived_gpu_ratio if by_demand and sample.arrived_gpu_ratio is not None else sample.arrived


def _value(sample: ReplaySample, name: str) -> float | None:
    value: float | None = sample.pending if name == "pending" else to_plain(sample.metrics)[name]
    return value


def _bars(name: str, runs: Sequence[PolicyRun]) -> str:
    bars = [(run.result.policy, to_plain(run.result.metrics)[name]) for run in runs]
    chart = bar_chart(f"{_METRICS[name]}, at the end", bars, y_label=name)
    return _figure(f"{name} at the end", _METRICS[name], chart, ["policy", name], [list(bar) for bar in bars])


def _figure(heading: str, meaning: str, chart: str, header: list[str], rows: list[list[Cell]]) -> str:
    return (
        f"<h2>{escape(heading)}</h2>\n<figure>\n{chart}\n<figcaption>{escape(meaning)}</figcaption>\n"
        f"<details><summary>Table</summary>\n{data_table(header, rows)}\n</details>\n</figure>"
    )


def data_table(header: Sequence[str], rows: Sequence[Sequence[Cell]], *, headless: bool = False) -> str:
    """Return an HTML table with escaped text; text columns are left-aligned and number columns right-aligned."""
    sides = [' class="text"' if column and isinstance(column[0], str) else "" for column in zip(*rows, strict=True)]
    sides += [""] * (len(header) - len(sides))
    cells = "".join(f"<th{side}>{escape(cell)}</th>" for side, cell in zip(sides, header, strict=True))
    head = "" if headless else f"<tr>{cells}</tr>\n"
    body = "\n".join(
        f"<tr>{''.join(f'<td{side}>{_cell(cell)}</td>' for side, cell in zip(sides, row, strict=True))}</tr>"
        for row in rows
    )
    return f'<div class="wide"><table>\n{head}{body}\n</table></div>'


def _cell(value: Cell) -> str:
    return escape(value) if isinstance(value, str) else number_text(value)
