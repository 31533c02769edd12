"""QueueingHint: the events that may make an unschedulable pod schedulable.

Retrying every pending pod after every change costs a batch each time; retrying too few pods leaves some pending
forever. A node becomes feasible only after the first filter that rejects it changes its result. The events to register
are therefore the union of the events of these filters (`helped_by`). The filters also describe the condition in words
(`waits`). If the filters accepted a node but the reservation failed, all events are registered. For a pod that fits no
empty node, additions and deletions of pods are omitted. PostFilter plugins may add an event after which other pods
could be evicted (`waits_to_evict`).
The text names only conditions that would help: those of the nodes that the fewest filters reject. For a pod that fits
an empty cluster, only nodes that would accept the pod when empty are considered. Conditions that one node needs
together are joined by "and".
Source: Kubernetes documentation, "Scheduling Framework", QueueingHint. Using only the first rejecting filters is
specific to hetsched.
Invariant: a change that makes a refused pod schedulable is of a registered kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hetsched.contracts.api.decision import Reason, Verdict
from hetsched.contracts.message import Message, as_message, joined
from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.objects.workload import PodSpec
from hetsched.contracts.waits import ANYTHING, LOADS, NODE_FACTS, Event, WaitsFor
from hetsched.engine.cluster.state import ClusterState

from .policy import Policy
from .request import Request

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
    "declared_features": Event.NODE_FEATURES,
    "kubelet_version": Event.NODE_CAPACITY,
}
_SAYS_NOTHING = frozenset({"problems", "source", "observed_at", "addresses", "image_sizes"})


def differences(before: NodeReport, after: NodeReport) -> frozenset[Event]:
    """Return the kinds of events between two reports of a node, or all kinds if a changed field has none of its own."""
    changed = {name for name in NodeReport.__struct_fields__ if getattr(before, name) != getattr(after, name)}
    changed -= _SAYS_NOTHING
    if not changed <= _OF_FIELD.keys():
        return NODE_FACTS | {Event.NODE_USE}
    return frozenset(_OF_FIELD[name] for name in changed)


def waits_for(
    policy: Policy,
    state: ClusterState,
    request: Request,
    reasons: Sequence[Reason],
    verdict: Verdict,
    *,
    refused_all: bool = True,
    together: Sequence[tuple[str, ...]] | None = None,
) -> tuple[WaitsFor, ...]:
    """Return the events that may help a refused pod, per plugin; `reasons` are the first refusals of all nodes.

    `together` holds sets of plugins that all must accept a node before it becomes feasible. The first plugin of a set
    describes the condition for the whole set. If `together` is None, each plugin describes its own condition.
    """
    if verdict is Verdict.MISCONFIGURED:
        return ()
    ignored = LOADS if verdict is Verdict.NEVER_FITS else frozenset()
    plugins = {plugin.name: plugin for plugin in policy.gates}
    found = []

    def condition(name: str) -> Message:
        waits = plugins[name].waits
        return (
            as_message(waits(request))
            if waits is not None
            else Message("plugin {plugin} to accept a node for the pod", plugin=name)
        )

    for name in dict.fromkeys(reason.plugin for reason in reasons):
        sets = [(name,)] if together is None else [each for each in together if each[0] == name]
        text = joined(", or ", [joined(" and ", map(condition, each)) for each in sets])
        found.append(_wait(name, plugins[name].info.helped_by - ignored, text))
    if not state.reports:
        first = next((plugin.name for plugin in policy.gates), "scheduler")
        found.append(_wait(first, frozenset({Event.NODE_ADDED}), Message("a node")))
    elif not refused_all:
        found.append(_wait("reserve", ANYTHING, Message("all requested resources to be free on one node")))
    for plugin in policy.post_filters if verdict is Verdict.NOT_NOW else ():
        awaited = plugin.waits_to_evict(request, state) if plugin.waits_to_evict is not None else None
        if awaited:
            found.append(_wait(plugin.name, plugin.info.helped_by, awaited))
    return tuple(found)


def for_scheduling_gates(pod: PodSpec) -> tuple[WaitsFor, ...]:
    """Return the wait condition of a gated pod: the removal of its scheduling gates."""
    several = "the pod's scheduling gates {names} to be removed"
    one = "the pod's scheduling gate {name} to be removed"
    text = Message(several, names=joined(", ", pod.gates)) if len(pod.gates) > 1 else Message(one, name=pod.gates[0])
    return (_wait("request", frozenset({Event.POD_CHANGED}), text),)


def for_anything(plugin: str, text: Message) -> tuple[WaitsFor, ...]:
    """Return a wait condition for any event and for periodic retries, used if the helpful events are unknown."""
    return (_wait(plugin, ANYTHING, text),)


def _wait(plugin: str, events: Iterable[Event], text: Message) -> WaitsFor:
    return WaitsFor(plugin, tuple(sorted(events, key=_ORDER.index)), text)
