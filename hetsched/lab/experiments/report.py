"""Report files of experiments: one page with every table and plot, and the rows as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from html import escape

from hetsched.lab.plots import title_of
from hetsched.lab.report import data_table, whole_page

from .outcome import Experiment, ResultRow

_HEADER = ["policy", "case", "metric", "value", "published"]


def report_files(experiments: Sequence[Experiment]) -> dict[str, bytes]:
    """Return the content of every file of the report, by name."""
    parts = [part for experiment in experiments for part in _section(experiment)]
    rows = io.StringIO()
    writer = csv.writer(rows, lineterminator="\n")
    writer.writerow(["experiment", *_HEADER])
    for experiment in experiments:
        writer.writerows([experiment.name, *_cells(row)] for row in experiment.rows)
    return {"index.html": whole_page("hetsched experiments", parts).encode(), "rows.csv": rows.getvalue().encode()}


def _section(experiment: Experiment) -> list[str]:
    kind = " (reconstruction)" if experiment.reconstruction else ""
    expectations = [["held" if item.held else "FAILED", item.text] for item in experiment.expectations]
    return [
        f"<h2>{escape(experiment.title + kind)}</h2>",
        f"<p>{escape(experiment.source)}</p>",
        data_table(_HEADER, [_cells(row) for row in experiment.rows]),
        *(f"<figure>{chart}<figcaption>{title_of(chart)}</figcaption></figure>" for chart in experiment.charts),
        data_table(["", "expected"], expectations),
        *(f"<p>{escape(text)}</p>" for text in experiment.notes),
    ]


def _cells(row: ResultRow) -> list[str | float | None]:
    return [row.policy, row.case, row.metric, row.value, row.published]
