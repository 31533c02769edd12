"""Text view of a decision and the history of its pod, in the order of the web page.

The view lists the filters in order, each with the number of nodes that pass it (the funnel). It lists the pending time
of a pod by reason, longest first; these times add up to the total pending time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from rich.console import Console
from rich.text import Text

from hetsched.client.documents import Decision, Outlook, PodWhy, PreemptedBy, ReasonSpan
from hetsched.contracts.api.decision import Evicted, NodeOutcome, Reason, funnel
from hetsched.contracts.api.explanation import Changed, Gang
from hetsched.contracts.objects.allocation import Allocation

from ..output import duration, table
from .explained import eviction_lines, margin_lines, nearest_lines, use_text
from .workload_view import coloured

_SHOWN_NODES = 10
_SHOWN_MEMBERS = 10
_WAITING = {
    "not-now": "why it does not fit",
    "never-fits": "why it never fits",
    "misconfigured": "why it is misconfigured",
}


def show_decision(out: Console, decision: Decision, why: PodWhy | None = None) -> None:
    """Print a decision and, if `why` is given, the history of the pod."""
    title = Text.assemble(coloured(decision.verdict.value), "  ", (decision.pod, "bold"))
    out.print(title.append(f"  on {decision.cluster}", style="dim"), soft_wrap=True)
    _print(out, decision.summary)
    if why is not None and why.message:
        _print(out, why.message)
    rule = f", by {decision.policy_rule}" if decision.policy_rule else ""
    at, policy = _format_time(decision.created_at), decision.policy
    by = f"decision {decision.id} at {at} by {policy.name} v{policy.version}"
    _print(out, f"{by}{rule}", "dim")
    waits = [wait.text for wait in decision.waits_for if wait.text]
    if waits and not decision.node:
        tried = f"; last tried at {_format_time(decision.tried_at)}" if decision.tried_at else ""
        _print(out, f"waiting for: {', or '.join(waits)}{tried}")
    if decision.node:
        score = "" if decision.score is None else f", score {decision.score:.2f}"
        _print(out, f"node: {decision.node}{score}")
        for line in _allocation_lines(decision.allocation):
            _print(out, line)
    for line in _preemptions(why.preempted_by if why is not None else ()):
        _print(out, line)
    if why is not None and why.gang is not None:
        _show_gang(out, why.gang)
    _show_reasons(out, decision)
    _show_nodes(out, decision.nodes)
    lines = [*eviction_lines(decision.evictions, decision.nominated_node)]
    if why is None or why.outlook is None:
        lines += nearest_lines(decision.nearest_fit or ())
    lines += margin_lines(decision.tipping) if decision.tipping else ()
    lines += [f"expected use: {use_text(decision.expected_use)}"] if decision.expected_use else ()
    for line in lines:
        _print(out, line)
    if why is not None:
        _show_why(out, why, decision)


def _show_why(out: Console, why: PodWhy, decision: Decision) -> None:
    """Print request changes that would make the pod fit, its pending time by reason, and changes of the reasons."""
    if why.decision is not None and why.decision != decision.id:
        _print(out, f"a later decision exists: hetsched explain {why.decision}", "bold")
    if why.outlook is not None:
        _show_outlook(out, why.outlook, decision)
    _show_time(out, why)
    if why.changed is not None and why.decision == decision.id:
        _show_changed(out, why.changed)


def _print(out: Console, text: str, style: str = "") -> None:
    out.print(Text(text, style=style), soft_wrap=True)


def _format_time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _preemptions(preempted_by: Sequence[PreemptedBy]) -> Iterator[str]:
    """Yield a line for each pod that preempted this one, the latest first."""
    for preemptor in preempted_by:
        by = f", decision {preemptor.decision}" if preemptor.decision is not None else ""
        yield f"preempted by {preemptor.pod} on {preemptor.node} at {_format_time(preemptor.at)}{by}"


def _allocation_lines(allocation: Allocation | None) -> Iterator[str]:
    """Yield a line per resource of a placed pod."""
    if allocation is None:
        return
    isa = allocation.isa
    if isa is not None and isa.mode != "any":
        slower = f", {isa.slowdown:g} x slower" if isa.slowdown else ""
        yield f"instructions: {isa.mode}, {isa.required} offered by {isa.offered or '-'}{slower}"
    if isa is not None:
        yield from (f"warning: {warning}" for warning in isa.warnings or ())
    if allocation.gpus:
        cards = (f"#{card.index} ({card.milli} ‰, {card.memory_mib} MiB)" for card in allocation.gpus)
        yield f"cards: {', '.join(cards)}"
    if allocation.zones:
        zones = (f"{zone.name} [{zone.cpus}]" if zone.cpus else zone.name for zone in allocation.zones)
        yield f"zones: {', '.join(zones)}"


# -- nodes -------------------------------------------------------------------------------------------------------------


def _show_reasons(out: Console, decision: Decision) -> None:
    reasons = decision.reasons
    if not reasons:
        return
    out.print()
    steps = [f"{plugin} {remaining}" if plugin else f"{remaining} nodes" for plugin, remaining in funnel(reasons)]
    if steps:
        empty = "  (as if every node were empty)" if decision.verdict.value == "never-fits" else ""
        _print(out, f"nodes left after each plugin: {' > '.join(steps)}{empty}", "dim")
    title = _WAITING.get(decision.verdict.value, "why other nodes do not fit")
    shown = table("nodes", "", title, "plugin", "code", right=("nodes",))
    most = max((reason.nodes for reason in reasons), default=0)
    for reason in reasons:
        bar = "▇" * max(round(8 * reason.nodes / most), 1) if reason.nodes and most else ""
        shown.add_row(
            str(reason.nodes or "-"), Text(bar, style="cyan"), Text(_reason(reason)), reason.plugin,
            Text(reason.code, style="dim"),
        )  # fmt: skip
    out.print(shown)


def _reason(reason: Reason) -> str:
    field = f"{reason.field}: " if reason.field and reason.field not in reason.message else ""
    missing = [name for name in reason.missing if name not in reason.message]
    return f"{field}{reason.message}" + (f" (missing: {', '.join(missing)})" if missing else "")


def _show_nodes(out: Console, nodes: Sequence[NodeOutcome]) -> None:
    """Print the best nodes with each plugin's score."""
    feasible = [node for node in nodes if node.feasible]
    if not feasible:
        return
    weights = {score.plugin: score.weight for node in feasible for score in node.scores}
    names = [f"{plugin} ×{weight:g}" for plugin, weight in weights.items()]
    shown = table("rank", "node", *names, "total", right=("rank", *names, "total"))
    for node in feasible[:_SHOWN_NODES]:
        scores = {score.plugin: f"{score.weighted:.2f}" for score in node.scores}
        cells = (scores.get(plugin, "-") for plugin in weights)
        shown.add_row(str(node.rank or "-"), Text(node.name), *cells, f"{node.total or 0.0:.2f}")
    out.print()
    out.print(shown)
    if len(feasible) > _SHOWN_NODES:
        _print(out, f"and {len(feasible) - _SHOWN_NODES} more; -o json lists all", "dim")


# -- over time ---------------------------------------------------------------------------------------------------------


def _show_gang(out: Console, gang: Gang) -> None:
    _print(out, f"gang {gang.name}: {gang.placed} of {gang.needed} members are placed")
    if gang.broken_by:
        _print(out, f"  {gang.broken_by}")
    lacking = [member for member in gang.members if member.state not in ("placed", "binding", "bound", "running")]
    for member in lacking[:_SHOWN_MEMBERS]:
        _print(out, f"  {member.pod}: {member.state}", "dim")
    if len(lacking) > _SHOWN_MEMBERS:
        _print(out, f"  and {len(lacking) - _SHOWN_MEMBERS} more", "dim")


def _show_outlook(out: Console, outlook: Outlook, decision: Decision) -> None:
    out.print()
    _print(out, "changes that would place it now", "bold")
    if outlook.summary != decision.summary:
        _print(out, outlook.summary)
    for line in nearest_lines(step.fit for step in outlook.next_steps):
        _print(out, line)
    for blockers in outlook.blockers:
        if blockers:
            _print(out, f"it fits on {blockers[0].node} without {_pod_names(blockers)}")
    if not outlook.next_steps and not outlook.blockers and outlook.verdict != "placed":
        _print(out, "no change of one or two fields would make it fit", "dim")


def _pod_names(pods: Sequence[Evicted]) -> str:
    named = [f"{pod.pod} (priority {pod.priority})" for pod in pods if pod.pod]
    hidden = len(pods) - len(named)
    others = "a pod of another namespace" if hidden == 1 else f"{hidden} pods of other namespaces"
    return ", ".join([*named, *([others] if hidden else [])])


def _show_time(out: Console, why: PodWhy) -> None:
    waited = [span for span in why.spans if span.pending]
    if not waited:
        return
    grouped: dict[tuple[str, str], list[ReasonSpan]] = {}
    for span in waited:
        grouped.setdefault((span.plugin, _words(span)), []).append(span)
    total = sum(span.seconds for span in waited)
    rows = sorted(grouped.items(), key=lambda item: -sum(span.seconds for span in item[1]))
    shown = table("time", "share", "times", f"pending for {duration(why.pending_seconds)} in total", "plugin",
                  right=("time", "share", "times"))  # fmt: skip
    for (plugin, words), spans in rows:
        seconds = sum(span.seconds for span in spans)
        share = f"{100 * seconds / total:.0f} %" if total else "-"
        shown.add_row(duration(seconds), share, str(len(spans)), Text(words), plugin or "-")
    out.print()
    out.print(shown)


def _words(span: ReasonSpan) -> str:
    if span.code == "Queued":
        return "queued, no decision yet"
    return span.message or span.code


def _show_changed(out: Console, changed: Changed) -> None:
    before, now = changed.verdicts
    verdict = "same verdict" if before == now else f"{before} -> {now}"
    policy = f", policy {changed.policies[0]} -> {changed.policies[1]}" * (changed.policies[0] != changed.policies[1])
    facts = ", node facts changed" if changed.inventory else ""
    times = "1 change" if changed.revisions == 1 else f"{changed.revisions} changes"
    out.print()
    _print(out, f"compared with decision {changed.decision}: {verdict}{policy}; {times} of running pods{facts}")
    for difference in changed.reasons:
        _print(out, f"  {difference.before} -> {difference.now} nodes: {difference.message}", "dim")
