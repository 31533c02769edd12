"""Diagnosis of a refused pod: reasons per node, verdict and events that may help.

The message "0/48 nodes are available" has to state the reason for each group of nodes, the missing amounts, and whether
waiting can help. Every node is counted for the first filter, in policy order, that rejects it. The verdict is
    misconfigured  the pod's own request is invalid;
    never-fits     no node fits even when empty: no pods, Ready, uncordoned, without condition taints; rules between
                   pods are assumed to be satisfiable;
    not-now        otherwise. A node counts as a possible fit if it is rejected only because a fact is unknown, or if
                   no single filter rejects it both now and when empty.
The filters of the decision run as full evaluations, outside the hot path. The events to wait for are those of the first
filter that rejects each node: no node becomes feasible before one of these filters changes its result.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from hetsched.contracts.api.decision import Reason, Verdict
from hetsched.contracts.message import Message, as_message, joined
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.columns import Bools, Window
from hetsched.engine.framework.diagnosis import Diagnosis, FunnelStep
from hetsched.engine.framework.extension_points import Scope
from hetsched.engine.framework.handle import Handle
from hetsched.engine.framework.policy import ActivePlugin
from hetsched.engine.framework.queueing_hints import for_scheduling_gates, waits_for
from hetsched.engine.framework.request import Request
from hetsched.engine.framework.status import SKIP, Refusal

_HEADS = {
    Verdict.MISCONFIGURED: "{pod} is misconfigured: {detail}",
    Verdict.NEVER_FITS: "{pod} never fits this cluster, not even empty: {detail}",
    Verdict.NOT_NOW: "{pod} does not fit now: {detail}",
}

# Maximum number of reasons in the summary. If there are more, it names one reason fewer and counts the rest.
_MOST_REASONS = 5

# Maximum number of nodes named per reason, of those that would fit the pod if they were empty.
_MOST_CANDIDATES = 8


class _Sweep:
    """Evaluation of all filters over one window: the refused rows and reasons of each filter.

    The evaluation of the emptied cluster gets the evaluation of the current cluster as `now`. It counts a refusal only
    if the same filter rejects the row in both, because a fact that the emptied cluster restores (a GPU in maintenance)
    may exclude a node that the filter accepts today.
    """

    def __init__(self, scheduler: Handle, request: Request, nodes: Window, now: _Sweep | None = None) -> None:
        self.left: Bools = np.ones(nodes.n, np.bool_)
        self.definite: Bools = np.zeros(nodes.n, np.bool_)
        self.resolvable: Bools = np.ones(nodes.n, np.bool_)
        self.first: list[tuple[ActivePlugin, Refusal, Bools]] = []
        self.refused: dict[str, Bools] = {}  # plugin -> mask of the rows it refuses, if there are any
        self.funnel: list[FunnelStep] = []
        for plugin in scheduler.policy.gates:
            if now is not None and plugin.info.scope is Scope.CLUSTER:
                continue
            before = int(self.left.sum())
            refused: Bools = np.zeros(nodes.n, np.bool_)
            for refusal, there in _refusals(scheduler, plugin, request, nodes):
                rows = there if now is None else there & now.refused.get(plugin.name, False)
                refused |= rows
                if not refusal.unknown:
                    self.definite |= rows
                if not refusal.resolvable:
                    self.resolvable &= ~rows
                charged = rows & self.left
                if charged.any():
                    self.first.append((plugin, refusal, charged))
            for charging, _, charged in self.first:
                if charging is plugin:
                    self.left &= ~charged
            self.funnel.append(FunnelStep(plugin.name, before, int(self.left.sum())))
            if refused.any():
                self.refused[plugin.name] = refused

    def fewest(self, rows: Bools) -> tuple[tuple[str, ...], ...]:
        """Return the smallest sets of plugins that refuse one of `rows`; the plugins of a set are in policy order.

        A row becomes feasible once all plugins of its set accept it, so rows with the smallest sets are the closest to
        being feasible.
        """
        if not self.refused:
            return ()
        table = np.array([refused[rows] for refused in self.refused.values()])
        counts = table.sum(axis=0)
        if not counts.any():
            return ()
        shortest = table[:, counts == counts[counts > 0].min()]
        found = np.unique(shortest.T @ (1 << np.arange(len(self.refused), dtype=np.int64))).tolist()
        names = list(self.refused)
        return tuple(tuple(name for place, name in enumerate(names) if code >> place & 1) for code in found)

    def near(self, rows: Bools) -> frozenset[tuple[str, str, str]]:
        """Return the (plugin, code, message) of each reason for which one of `rows` is first rejected."""
        return frozenset(
            (plugin.name, refusal.code, refusal.message) for plugin, refusal, mask in self.first if (mask & rows).any()
        )

    def candidates(self, rows: Bools, names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        """Return, for each reason, the names of the first few nodes among `rows` that are rejected for this reason."""
        found: dict[tuple[str, Refusal], list[str]] = {}
        for plugin, refusal, charged in self.first:
            places = np.flatnonzero(charged & rows)[:_MOST_CANDIDATES].tolist()
            found.setdefault((plugin.name, refusal), []).extend(names[row] for row in places)
        return tuple(tuple(some[:_MOST_CANDIDATES]) for some in found.values())

    def reasons(self) -> tuple[Reason, ...]:
        counted: dict[tuple[str, Refusal], int] = {}
        for plugin, refusal, rows in self.first:
            counted[plugin.name, refusal] = counted.get((plugin.name, refusal), 0) + int(rows.sum())
        steps = {step.plugin: step for step in self.funnel}
        return tuple(_reason(name, refusal, nodes, steps[name]) for (name, refusal), nodes in counted.items())


def _refusals(scheduler: Handle, plugin: ActivePlugin, request: Request, nodes: Window) -> list[tuple[Refusal, Bools]]:
    if plugin.serves("pre-filter"):
        answer = plugin.instance.pre_filter(request, scheduler.state)
        if answer is SKIP:
            return []
        if isinstance(answer, Refusal):
            return [(answer, np.ones(nodes.n, np.bool_))]
        if answer is not None:
            narrowed = np.ones(nodes.n, np.bool_)
            narrowed[answer] = False
            return [(Refusal("NarrowedOut", Message("{plugin} excludes this node", plugin=plugin.name)), narrowed)]
    if not plugin.serves("filter"):
        return []
    return [(refusal, rows) for refusal, rows in plugin.instance.refusals(request, nodes) if rows.any()]


def _reason(plugin: str, refusal: Refusal, nodes: int, step: FunnelStep) -> Reason:
    message = as_message(refusal.message)  # a plugin may return plain text
    return Reason(refusal.code, plugin, nodes, message, refusal.missing, refusal.field, step.before, step.after)


def misconfigured(pod: PodSpec) -> Diagnosis:
    """Return the diagnosis of a pod with an invalid request."""
    reasons = tuple(Reason(p.code, "request", 0, p.message, (), p.field) for p in pod.problems)
    first = pod.problems[0]
    message = first.message
    if first.field not in first.message:
        message = joined(": ", [first.field, message])
    return Diagnosis(Verdict.MISCONFIGURED, reasons, (), _summary_of(Verdict.MISCONFIGURED, pod, message))


def gates_diagnosis(pod: PodSpec) -> Diagnosis:
    """Return the diagnosis of a pod with scheduling gates."""
    several, one = "the pod has the scheduling gates {names}", "the pod has the scheduling gate {name}"
    message = Message(several, names=joined(", ", pod.gates)) if pod.gates[1:] else Message(one, name=pod.gates[0])
    reason = Reason("SchedulingGated", "request", 0, message, pod.gates, "spec.schedulingGates")
    summary = _summary_of(Verdict.NOT_NOW, pod, message)
    return Diagnosis(Verdict.NOT_NOW, (reason,), (), summary, waits_for=for_scheduling_gates(pod))


def diagnose(scheduler: Handle, pod: PodSpec) -> Diagnosis:
    """Return why no node is feasible for `pod` on the scheduler's current state."""
    if pod.problems:
        return misconfigured(pod)
    if pod.gates:
        return gates_diagnosis(pod)
    state = scheduler.state
    scheduler.prepare(pod)
    request = state.compile(pod)
    whole = _pod_diagnosis(scheduler, request)
    if whole is not None:
        return whole
    now = _Sweep(scheduler, request, state.all_rows)
    empty = _Sweep(scheduler, request, state.emptied(), now)
    never = bool(empty.definite.all())
    verdict = Verdict.NEVER_FITS if never else Verdict.NOT_NOW
    sweep = empty if never else now
    rows = tuple(np.flatnonzero(now.resolvable & ~now.left & ~empty.definite).tolist())
    reasons = sweep.reasons()
    near = sweep.near(~empty.definite)
    together = sweep.fewest(np.ones_like(empty.definite) if never else ~empty.definite)
    waits = waits_for(
        scheduler.policy,
        scheduler.state,
        request,
        reasons,
        verdict,
        refused_all=not bool(sweep.left.any()),
        together=together,
    )
    sentence = _sentence(pod, verdict, reasons, len(state.reports), near)
    candidates = () if never else sweep.candidates(~empty.definite, state.columns.names)
    return Diagnosis(verdict, reasons, tuple(sweep.funnel), sentence, rows, waits, candidates)


def _pod_diagnosis(scheduler: Handle, request: Request) -> Diagnosis | None:
    """Return the diagnosis if a cluster-scoped plugin gives a verdict on the pod as a whole, else None."""
    nodes = len(scheduler.state.reports)
    for plugin in scheduler.policy.pre_filters:
        if plugin.info.scope is Scope.CLUSTER:
            answer = plugin.instance.pre_filter(request, scheduler.state)
            if isinstance(answer, Refusal) and answer.verdict is not None:
                reason = Reason(answer.code, plugin.name, nodes, answer.message, answer.missing, answer.field)
                summary = _summary_of(answer.verdict, request.pod, as_message(answer.message))
                waits = waits_for(scheduler.policy, scheduler.state, request, (reason,), answer.verdict)
                because = tuple(msgspec.structs.replace(one, candidates=()) for one in answer.because)
                return Diagnosis(
                    answer.verdict, (reason, *because), (), summary, waits_for=waits,
                    candidates=((), *(one.candidates for one in answer.because)),
                )  # fmt: skip
    return None


def _sentence(
    pod: PodSpec, verdict: Verdict, reasons: tuple[Reason, ...], nodes: int, near: frozenset[tuple[str, str, str]]
) -> Message:
    """Format the number of nodes per reason; if there are many reasons, the reasons in `near` are named first.

    `near` are the reasons (plugin, code, message) of the nodes that could fit.
    """
    if not nodes:
        return _summary_of(verdict, pod, Message("the cluster has no nodes"))
    shown = list(reasons)
    if len(shown) > _MOST_REASONS:
        shown.sort(key=lambda r: ((r.plugin, r.code, r.message) not in near, -r.nodes))
        del shown[_MOST_REASONS - 1 :]
    parts = [
        Message("{count}: {detail}", count=r.nodes, detail=r.message) for r in sorted(shown, key=lambda r: -r.nodes)
    ]
    others = [r.nodes for r in reasons if r not in shown]
    if others:
        message = Message("{n} other reasons", n=len(others))
        parts.append(Message("{count}: {detail}", count=sum(others), detail=message))
    if not parts:
        return _summary_of(verdict, pod, Message("{n} of {m} nodes fit", n=0, m=nodes))
    counts = Message("{n} of {m} nodes fit ({each})", n=0, m=nodes, each=joined("; ", parts))
    return _summary_of(verdict, pod, counts)


def _summary_of(verdict: Verdict, pod: PodSpec, message: Message) -> Message:
    """Return the summary of a pod's diagnosis: the verdict and the reasons in `message`."""
    return Message(_HEADS[verdict], pod=pod.key, detail=message)


def unknown_reasons(scheduler: Handle, pod: PodSpec) -> tuple[Reason, ...]:
    """Return the reasons of the nodes that are refused only because a fact is unknown."""
    request = scheduler.state.compile(pod)
    now = _Sweep(scheduler, request, scheduler.state.all_rows)
    open_rows = ~now.left & ~now.definite
    return tuple(
        Reason(refusal.code, plugin.name, int((rows & open_rows).sum()), refusal.message)
        for plugin, refusal, rows in now.first
        if refusal.unknown and (rows & open_rows).any()
    )


def first_rejections(scheduler: Handle, request: Request) -> list[tuple[Reason, Bools]]:
    """Return the reasons of first rejections, each with the (N,) mask of its nodes.

    A node's first rejection is by the first filter, in policy order, that rejects it in the current state.
    """
    sweep = _Sweep(scheduler, request, scheduler.state.all_rows)
    return [
        (Reason(refusal.code, plugin.name, int(rows.sum()), refusal.message, refusal.missing, refusal.field), rows)
        for plugin, refusal, rows in sweep.first
    ]


def possible_rows(scheduler: Handle, request: Request) -> Bools:
    """Return the (N,) mask of nodes that could accept the pod if they were empty, or if unknown facts were known."""
    now = _Sweep(scheduler, request, scheduler.state.all_rows)
    return ~_Sweep(scheduler, request, scheduler.state.emptied(), now).definite


def first_reasons(scheduler: Handle, request: Request) -> dict[int, Reason]:
    """Return, for each infeasible node's row, the reason of the first filter that rejects the node."""
    return _first_reasons(_Sweep(scheduler, request, scheduler.state.all_rows))


def _first_reasons(sweep: _Sweep) -> dict[int, Reason]:
    found: dict[int, Reason] = {}
    for plugin, refusal, rows in sweep.first:
        reason = Reason(refusal.code, plugin.name, 1, refusal.message, refusal.missing, refusal.field)
        for row in np.flatnonzero(rows).tolist():
            found.setdefault(row, reason)
    return found


def rejected_rows(scheduler: Handle, request: Request) -> dict[int, tuple[Reason, bool]]:
    """Return, for each infeasible node's row, the first reason and whether preemption could make the node feasible."""
    state = scheduler.state
    now = _Sweep(scheduler, request, state.all_rows)
    empty = _Sweep(scheduler, request, state.emptied(), now)
    opened = now.resolvable & ~empty.definite
    return {row: (reason, bool(opened[row])) for row, reason in _first_reasons(now).items()}
