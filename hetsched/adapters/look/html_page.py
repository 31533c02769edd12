"""HTML page of a cluster report: one file without scripts or external resources."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files

from hetsched.contracts.api.cluster_report import FRAGMENTATION, ClusterFinding, ClusterReport, PlacementRegret


def html_page(report: ClusterReport, *, title: str) -> str:
    """Return the page of a report; every text of the cluster is escaped."""
    style = (files("hetsched.adapters.look") / "page.css").read_text()
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(report.evaluated_at)}, policy {escape(report.policy.name)} '
        f"v{report.policy.version}, snapshot {escape(report.snapshot)}</p>",
        _facts(report),
        "<h2>Findings</h2>",
        *(_finding(one) for one in report.findings),
        *([] if report.findings else ["<p>No findings.</p>"]),
        *_regret(report.regret),
        *_unchecked(report),
    ]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        "</body>\n</html>\n"
    )


def _facts(report: ClusterReport) -> str:
    gpus = report.gpus
    shown = [
        ("Nodes", f"{report.nodes:,}"),
        ("Running pods", f"{report.running:,}"),
        ("Pending pods", f"{report.pending:,}"),
        *((f"{level.capitalize()}s", f"{count:,}") for level, count in report.counts.items()),
    ]
    if gpus.total:
        shown += [("GPUs allocated", f"{gpus.allocated:g} of {gpus.total:,}"), ("GPUs stranded", f"{gpus.stranded:,}")]
        if gpus.fragmentation is not None:
            shown.append(("GPU fragmentation", f"{gpus.fragmentation:.1%}"))
    cells = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in shown)
    listed = f'<dl class="facts">{cells}</dl>'
    if gpus.fragmentation is not None:
        listed += f'<p class="soft">GPU fragmentation is {FRAGMENTATION}.</p>'
    return listed


def _finding(one: ClusterFinding) -> str:
    level = one.level.value
    name = f" {one.name}" if one.name else ""
    evidence = "".join(f"<li>{escape(text)}</li>" for text in one.evidence)
    listed = f"<ul>{evidence}</ul>" if evidence else ""
    return (
        f'<section class="finding {level}"><h3><span class="level">{level}</span> <code>{escape(one.code)}</code> '
        f"{escape(one.kind + name)}</h3><p>{escape(one.message)}</p>{listed}{_affected(one)}"
        f"<p><strong>Remedy:</strong> {escape(one.remedy)}</p></section>"
    )


def _affected(one: ClusterFinding) -> str:
    if not one.affected or (one.affected == (one.name,) and one.count == 1):
        return ""
    more = f" and {one.count - len(one.affected):,} more" if one.count > len(one.affected) else ""
    return f'<p class="soft">Affected: {escape(", ".join(one.affected) + more)}</p>'


def _regret(regret: PlacementRegret) -> list[str]:
    if not regret.compared:
        return []
    rows = [[one.pod, one.node, one.better, f"{one.regret:.2f}", str(one.rank)] for one in regret.largest]
    table = _table(("Pod", "Node", "Node of the policy", "Regret", "Rank"), rows, numbers=(3, 4)) if rows else ""
    return [
        "<h2>Placements</h2>",
        f"<p>{regret.compared:,} of {regret.pods:,} running pods were compared with the choice of the policy: "
        f"{regret.elsewhere:,} would run on another node; mean regret {regret.mean:.2f} points.</p>",
        table,
    ]


def _unchecked(report: ClusterReport) -> list[str]:
    if not report.unchecked:
        return []
    items = "".join(f"<li>{escape(f'{one.part}: {one.reason}')}</li>" for one in report.unchecked)
    return ["<h2>Not checked</h2>", f"<ul>{items}</ul>"]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int]) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        marks = [' class="number"' if place in numbers else "" for place in range(len(cells))]
        return "".join(f"<{tag}{mark}>{escape(cell)}</{tag}>" for cell, mark in zip(cells, marks, strict=True))

    body = "".join(f"<tr>{row(cells, 'td')}</tr>" for cells in rows)
    return f'<div class="wide"><table><thead><tr>{row(header, "th")}</tr></thead><tbody>{body}</tbody></table></div>'
