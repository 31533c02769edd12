"""Text views of a workload with header, time in each state and pods: complete, shortened, or as changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from rich.text import Text

from hetsched.client.documents import REFUSED, PodRow, Span, Workload

from ..output import console, duration, note, table

COLOURS = {
    "placed": "green", "binding": "green", "bound": "green", "running": "bold green", "succeeded": "green",
    "pending": "cyan", "not-now": "yellow", "never-fits": "red", "misconfigured": "magenta", "failed": "bold red",
    "cancelled": "dim",
}  # fmt: skip
# States in order of relevance, for views that cannot show all pods.
_BY_RELEVANCE = (
    "failed", "misconfigured", "never-fits", "not-now", "pending", "binding", "bound", "placed", "running",
    "succeeded", "cancelled",
)  # fmt: skip


def coloured(state: str) -> Text:
    """Return a state in its colour. The text is complete without colour."""
    return Text(state, style=COLOURS.get(state, ""))


def show(workload: Workload) -> None:
    """Print a complete workload and suggested commands."""
    out = console()
    for line in head(workload):
        out.print(line, soft_wrap=True)
    objects = [row for row in workload.objects if row.state != "made" or row.message]
    if objects:
        rows = table("object", "state", "message")
        for row in objects:
            rows.add_row(Text(f"{row.kind} {row.namespace}/{row.name}"), Text(row.state), Text(row.message))
        out.print(rows)
    pods = table("pod", "state", "node", "message")
    for pod in workload.pods:
        pods.add_row(Text(pod.pod), coloured(pod.state), Text(pod.node or "-"), Text(_message(pod)))
    if pods.row_count:
        out.print(pods)
    if workload.pods_next:
        note(f"showing the first {len(workload.pods)} of {workload.pod_count} pods")
    if any(pod.state in REFUSED for pod in workload.pods):
        note(f"why: hetsched explain {workload.id}")


def head(workload: Workload) -> Iterator[Text]:
    """Yield the header lines of a workload."""
    title = Text.assemble((workload.id, "bold"), "  ", coloured(workload.state))
    named = workload.name if workload.name and workload.name != workload.id else ""
    about = ", ".join(
        part for part in (named, f"on {workload.cluster}", f"policy {workload.policy}" * bool(workload.policy)) if part
    )
    yield title.append(f"  {about}", style="dim")
    if workload.states:
        yield Text("  ".join(_span(span) for span in workload.states), style="dim")


def _span(span: Span) -> str:
    lasting = span.seconds is None
    seconds = (datetime.now(UTC) - span.since).total_seconds() if lasting else span.seconds
    ended = span.state in ("succeeded", "failed", "cancelled") and lasting
    return span.state if ended else f"{span.state} {duration(max(seconds or 0.0, 0.0))}"


def view(workload: Workload, height: int) -> list[Text]:
    """Return the workload in at most `height` lines, the most relevant pods first."""
    lines = list(head(workload))
    lines.append(_counts(workload.pods, workload.pod_count))
    room = height - len(lines)
    if room <= 0:
        return lines[: max(height, 1)]
    pods: Sequence[PodRow] = workload.pods
    if len(pods) > room:
        order = {state: at for at, state in enumerate(_BY_RELEVANCE)}
        pods = sorted(pods, key=lambda pod: order.get(pod.state, len(order)))[: room - 1]
    names = max((len(pod.pod) for pod in pods), default=0)
    nodes = max((len(pod.node or "-") for pod in pods), default=0)
    for pod in pods:
        cells = (f"{pod.pod:<{names}}", "  ", (f"{pod.state:<13}", COLOURS.get(pod.state, "")), "  ")
        lines.append(Text.assemble(*cells, f"{pod.node or '-':<{nodes}}", "  ", (_message(pod), "dim")))
    if workload.pod_count > len(pods):
        lines.append(Text(f"and {workload.pod_count - len(pods)} more pods", style="dim"))
    return lines


def _counts(pods: Iterable[PodRow], total: int) -> Text:
    counted = Counter(pod.state for pod in pods)
    line = Text(f"{total} pods: " if total != 1 else "1 pod: ")
    for at, state in enumerate(state for state in _BY_RELEVANCE if counted[state]):
        line.append(", " * bool(at)).append(f"{counted[state]} {state}", style=COLOURS.get(state, ""))
    return line


def change_lines(before: Workload | None, now: Workload) -> Iterator[str]:
    """Yield log lines for the changes between two states of a workload and its pods."""
    if before is None or before.state != now.state:
        yield f"{now.id}: {now.state}" if before is None else f"{now.id}: {before.state} -> {now.state}"
    for row in now.objects:
        if row.message and row not in (before.objects if before else ()):
            yield f"{row.kind} {row.namespace}/{row.name}: {row.state}: {row.message}"
    known = {pod.pod: pod for pod in before.pods} if before else {}
    for pod in now.pods:
        was = known.get(pod.pod)
        if was is not None and (was.state, was.node) == (pod.state, pod.node):
            continue
        place = f" on {pod.node}" if pod.node else ""
        message = f": {_message(pod)}" if _message(pod) else ""
        came = f"{was.state} -> " if was is not None and was.state != pod.state else ""
        yield f"{pod.pod}: {came}{pod.state}{place}{message}"


def _message(pod: PodRow) -> str:
    return pod.message or (f"waiting for {pod.waits_for}" if pod.waits_for else "")
