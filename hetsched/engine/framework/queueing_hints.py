"""What a refused pod waits for.

Problem: trying every waiting pod after every change costs a batch each time; trying too few leaves a pod for ever.
Rule: a node opens only after the first filter that refuses it changes its answer, so what may help the pod is what may
help any of those filters (`helped_by`); they say it in words (`waits`). Where the filters left a node that could not be
booked, anything may help. Of a pod that no node takes even empty, pods that come and go help none. Of any other the
words are those of filters that keep it off a node which would take it empty: at other nodes more would have to change.
Source: Kubernetes documentation, "Scheduling Framework", QueueingHint; that the first refusers are enough is our own.
Invariant: a change that makes a refused pod fit is of a kind that it waits for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from hetsched.contracts.decision import Reason, Verdict
from hetsched.contracts.node_report import NodeReport
from hetsched.contracts.waits import ANYTHING, LOADS, NODE_FACTS, Event, WaitsFor
from hetsched.contracts.workload import PodSpec

from .request import Request

if TYPE_CHECKING:
    from .cycle import Scheduler

_ORDER = list(Event)
_OF_FIELD = {
    "allocatable": Event.NODE_CAPACITY,
    "gpus": Event.NODE_CAPACITY,
    "numa": Event.NODE_CAPACITY,
    "power": Event.NODE_CAPACITY,
    "attach_limits": Event.NODE_CAPACITY,
    "labels": Event.NODE_LABELS,
    "annotations": Event.NODE_LABELS,
    "taints": Event.NODE_TAINTS,
    "ready": Event.NODE_TAINTS,
    "unschedulable": Event.NODE_TAINTS,
    "isa": Event.NODE_ISA,
    "usage": Event.NODE_USE,
}
_SAYS_NOTHING = frozenset({"problems", "source", "observed_at", "addresses"})


def differences(before: NodeReport, after: NodeReport) -> frozenset[Event]:
    """Return what is different about a node; a fact that nobody sorted counts as all of them."""
    changed = {name for name in NodeReport.__struct_fields__ if getattr(before, name) != getattr(after, name)}
    changed -= _SAYS_NOTHING
    if not changed <= _OF_FIELD.keys():
        return NODE_FACTS | {Event.NODE_USE}
    return frozenset(_OF_FIELD[name] for name in changed)


def waits_for(
    scheduler: Scheduler,
    request: Request,
    reasons: Sequence[Reason],
    verdict: Verdict,
    *,
    refused_all: bool = True,
    named: Collection[str] | None = None,
) -> tuple[WaitsFor, ...]:
    """Return what may help a refused pod, plugin by plugin; `reasons` are the first refusals of all nodes.

    Only the plugins that are `named` say it in words too, all where it is None.
    """
    if verdict is Verdict.MISCONFIGURED:
        return ()
    vain = LOADS if verdict is Verdict.NEVER_FITS else frozenset()
    plugins = {plugin.name: plugin for plugin in scheduler.policy.gates}
    found = []
    for name in dict.fromkeys(reason.plugin for reason in reasons):
        plugin = plugins[name]
        says = getattr(plugin.instance, "waits", None)
        text = says(request) if says is not None else f"another answer of {name}"
        text = text if named is None or name in named else ""
        found.append(_wait(name, plugin.info.helped_by - vain, text))
    if not scheduler.state.reports:
        found.append(_wait("node-ready", frozenset({Event.NODE_ADDED}), "a node"))
    elif not refused_all:
        found.append(_wait("reserve", ANYTHING, "what it would hold to be free on one node"))
    if verdict is Verdict.NOT_NOW and scheduler.policy.post_filters and scheduler.state.budgets:
        budgets = "a disruption budget that lets pods of lower priority leave for it"
        found.append(_wait("preemption", frozenset({Event.NAMES_CHANGED}), budgets))
    return tuple(found)


def for_its_gates(pod: PodSpec) -> tuple[WaitsFor, ...]:
    """Return that a pod waits for whoever holds it back."""
    text = f"its scheduling gate{'s' if len(pod.gates) > 1 else ''} {', '.join(pod.gates)} to be taken off"
    return (_wait("request", frozenset({Event.POD_CHANGED}), text),)


def for_anything(plugin: str, text: str) -> tuple[WaitsFor, ...]:
    """Return that a pod is tried again after any change, and from time to time: nobody knows what would help."""
    return (_wait(plugin, ANYTHING, text),)


def _wait(plugin: str, events: Iterable[Event], text: str) -> WaitsFor:
    return WaitsFor(plugin, tuple(sorted(events, key=_ORDER.index)), text)
