"""Compare the verdicts of kube-scheduler's code and of hetsched, and name the intended differences.

docs/reference/kubernetes-differences.md gives the reason for each intended difference; a test compares the names. All
other differences are unexplained, and fail the tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from . import verdicts
from .clusters import READY_TAINTS, Case
from .objects import Object
from .verdicts import FEASIBLE, RESOLVABLE, UNRESOLVABLE, KubeScheduler, PodVerdict

# The names of the intended differences.
SINGLE_POD_CLAIM = "ReadWriteOncePod"
FEWER_VICTIMS = "FewerVictims"
VICTIMS_FOUND = "VictimsFound"
OTHER_NODE = "EqualNode"
TERMINATING_VICTIMS = "TerminatingVictims"
NODE_CONDITION = "NodeCondition"
POD_REQUESTS = "PodRequests"
DEVICES_ABORTED = "DevicesAborted"
INEFFECTIVE_VICTIMS = "IneffectiveVictims"
VOLUME_ORDER = "VolumeOrder"
INTENDED = (
    SINGLE_POD_CLAIM,
    FEWER_VICTIMS,
    VICTIMS_FOUND,
    OTHER_NODE,
    TERMINATING_VICTIMS,
    NODE_CONDITION,
    POD_REQUESTS,
    DEVICES_ABORTED,
    INEFFECTIVE_VICTIMS,
    VOLUME_ORDER,
)
_ANSWERS = 20  # of kube-scheduler for one pod whose verdict may depend on the order of its volumes
_COUNTED = 2**31


class Difference(msgspec.Struct):
    """A difference in the verdicts for one pod; `name` is the name of an intended difference, or empty.

    `kind` is what differs: `node`, `score`, `victims` or `devices`; for a kubelet, for example `CPUs`.
    """

    pod: Object
    text: str
    name: str = ""
    kind: str = "victims"


class Cost(NamedTuple):
    """The cost of victims in the order in which kube-scheduler compares it.

    Source: `pickOneNodeForPreemption` of kube-scheduler.
    """

    violations: int
    highest_priority: int
    priorities: int  # sum, with 2^31 added for each victim
    count: int
    newest_start: int  # negative start of the oldest victim of highest priority


def differences(case: Case, scheduler: KubeScheduler) -> Iterator[Difference]:
    """Yield the differences in the verdicts for all pods of a case."""
    for pod, theirs, ours in zip(case.pods, scheduler.judge(case), verdicts.judge(case), strict=True):
        found = list(_of_pod(case, scheduler, pod, theirs, ours))
        if not all(each.name for each in found) and _is_random(case, scheduler, pod):
            found = [msgspec.structs.replace(each, name=each.name or VOLUME_ORDER) for each in found]
        yield from found


def _of_pod(
    case: Case, scheduler: KubeScheduler, pod: Object, theirs: PodVerdict, ours: PodVerdict
) -> Iterator[Difference]:
    yield from _of_nodes(case, pod, theirs, ours)
    if theirs.nodes == ours.nodes:
        yield from _of_scores(pod, theirs, ours)
    if FEASIBLE not in theirs.nodes.values():
        yield from _of_victims(case, scheduler, pod, theirs, ours)


def _is_random(case: Case, scheduler: KubeScheduler, pod: Object) -> bool:
    """Return whether kube-scheduler gives different answers for a pod that has several volume claims."""
    if sum("persistentVolumeClaim" in volume for volume in pod["spec"].get("volumes", ())) < 2:
        return False
    alone = msgspec.structs.replace(case, pods=[pod])
    first, *others = (scheduler.judge(alone)[0] for _ in range(_ANSWERS))
    return any(each.nodes != first.nodes for each in others)


def _of_nodes(case: Case, pod: Object, theirs: PodVerdict, ours: PodVerdict) -> Iterator[Difference]:
    unready = _unready_without_taint(case.objects)
    for node, state in theirs.nodes.items():
        found = ours.nodes.get(node, "unknown")
        if found == state:
            continue
        text = f"{node}: {state} ({theirs.reasons.get(node)}) and {found} ({ours.reasons.get(node)})"
        name = ""
        if (state, found) == (RESOLVABLE, UNRESOLVABLE) and "ReadWriteOncePod" in theirs.reasons[node]:
            name = SINGLE_POD_CLAIM
        elif found == UNRESOLVABLE and node in unready and "the node is not Ready" in ours.reasons[node]:
            name = NODE_CONDITION
        yield Difference(pod, text, name, "node")


def _of_scores(pod: Object, theirs: PodVerdict, ours: PodVerdict) -> Iterator[Difference]:
    for plugin in sorted(theirs.scores.keys() | ours.scores.keys()):
        scores, found = theirs.scores.get(plugin), ours.scores.get(plugin)
        if scores != found:
            name = POD_REQUESTS if plugin == "least-allocated" and "resources" in pod["spec"] else ""
            yield Difference(pod, f"{plugin}: scores {scores} and {found}", name, "score")


def _of_victims(
    case: Case, scheduler: KubeScheduler, pod: Object, theirs: PodVerdict, ours: PodVerdict
) -> Iterator[Difference]:
    if not theirs.selected and not ours.selected:
        return
    text = f"victims {_victims(theirs)} and {_victims(ours)}"
    if theirs.selected in _unready_without_taint(case.objects):
        yield Difference(pod, text, NODE_CONDITION)
        return
    if not ours.selected:
        yield Difference(pod, text, "" if _fits_without(case, scheduler, pod, theirs) else INEFFECTIVE_VICTIMS)
        return
    chosen = ours.victims[ours.selected]
    if not _fits_without(case, scheduler, pod, ours):
        yield Difference(pod, f"{text}: the pod does not fit without hetsched's victims")
    elif not theirs.selected:
        yield Difference(pod, text, VICTIMS_FOUND if _may_evict(case, scheduler, pod, ours.selected, chosen) else "")
    elif (ours.selected, chosen) != (theirs.selected, theirs.victims[theirs.selected]):
        difference = _of_costs(case.objects, pod, theirs, ours, text)
        if not difference.name and not _fits_without(case, scheduler, pod, theirs):
            difference.name = INEFFECTIVE_VICTIMS
        yield difference


def _fits_without(case: Case, scheduler: KubeScheduler, pod: Object, verdict: PodVerdict) -> bool:
    """Return whether a pod fits the selected node by kube-scheduler's filters after its victims are removed."""
    victims = verdict.victims[verdict.selected]
    remaining = [each for each in case.objects if each["kind"] != "Pod" or _key(each) not in victims]
    (afterwards,) = scheduler.judge(msgspec.structs.replace(case, objects=remaining, pods=[pod]))
    return afterwards.nodes[verdict.selected] == FEASIBLE


def _may_evict(case: Case, scheduler: KubeScheduler, pod: Object, node: str, chosen: frozenset[str]) -> bool:
    """Return whether the pod may evict these pods, and kube-scheduler's reason to find no victims applies.

    The pod may preempt, the victims have lower priority, and the pod does not fit without all pods of lower priority.
    """
    if pod["spec"].get("preemptionPolicy") == "Never":
        return False
    lower = {
        _key(each) for each in case.objects
        if each["kind"] == "Pod" and each["spec"]["nodeName"] == node and _priority(each) < _priority(pod)
    }  # fmt: skip
    remaining = [each for each in case.objects if each["kind"] != "Pod" or _key(each) not in lower]
    (without,) = scheduler.judge(msgspec.structs.replace(case, objects=remaining, pods=[pod]))
    return chosen <= lower and without.nodes[node] != FEASIBLE


def _of_costs(objects: Sequence[Object], pod: Object, theirs: PodVerdict, ours: PodVerdict, text: str) -> Difference:
    """Accept other victims if kube-scheduler's own order prefers them, or does not distinguish them."""
    victims, their_victims = ours.victims[ours.selected], theirs.victims[theirs.selected]
    cost, their_cost = _cost(objects, victims), _cost(objects, their_victims)
    if cost < their_cost:
        return Difference(pod, text, FEWER_VICTIMS)
    text = f"{text}, costs {their_cost} and {cost}"
    if cost == their_cost:
        return Difference(pod, text, OTHER_NODE)
    # A terminating pod ends without an eviction: it violates no budget, and its end costs nothing.
    running = {_key(each) for each in objects if each["kind"] == "Pod" and not _is_terminating(each)}
    evicted, their_evicted = victims & running, their_victims & running
    is_cheaper = not evicted or bool(their_evicted) and _cost(objects, evicted) <= _cost(objects, their_evicted)
    return Difference(pod, text, TERMINATING_VICTIMS if is_cheaper else "")


def _is_terminating(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _victims(verdict: PodVerdict) -> str:
    return f"{sorted(verdict.victims[verdict.selected])} on {verdict.selected}" if verdict.selected else "none"


def _cost(objects: Sequence[Object], victims: frozenset[str]) -> Cost:
    pods = _in_order(objects, victims)
    highest = max(map(_priority, pods))
    oldest = min(_start(pod) for pod in pods if _priority(pod) == highest)
    counted = sum(_priority(pod) + _COUNTED for pod in pods)
    return Cost(_violations(objects, victims), highest, counted, len(pods), -oldest)


def _in_order(objects: Sequence[Object], victims: frozenset[str]) -> list[Object]:
    pods = [each for each in objects if each["kind"] == "Pod" and _key(each) in victims]
    return sorted(pods, key=lambda pod: (-_priority(pod), _start(pod)))


def _violations(objects: Sequence[Object], victims: frozenset[str]) -> int:
    """Return how many of the evictions violate a budget."""
    budgets = [each for each in objects if each["kind"] == "PodDisruptionBudget"]
    left = {budget["metadata"]["name"]: budget["status"]["disruptionsAllowed"] for budget in budgets}
    violations = 0
    for pod in _in_order(objects, victims):
        violates = False
        for budget in budgets:
            if _selects(budget, pod):
                left[budget["metadata"]["name"]] -= 1
                violates = violates or left[budget["metadata"]["name"]] < 0
        violations += violates
    return violations


def _unready_without_taint(objects: Sequence[Object]) -> set[str]:
    """Return the nodes that are not Ready and have no taint for it yet."""
    return {
        node["metadata"]["name"]
        for node in objects
        if node["kind"] == "Node"
        and any(one["type"] == "Ready" and one["status"] != "True" for one in node["status"]["conditions"])
        and not any(taint["key"] in READY_TAINTS.values() for taint in node["spec"].get("taints", ()))
    }


def _key(pod: Object) -> str:
    return f"{pod['metadata'].get('namespace', 'default')}/{pod['metadata']['name']}"


def _priority(pod: Object) -> int:
    return int(pod["spec"].get("priority", 0))


def _start(pod: Object) -> int:
    return int("".join(filter(str.isdigit, pod["status"]["startTime"])))


def _selects(budget: Object, pod: Object) -> bool:
    labels: dict[str, Any] = pod["metadata"].get("labels", {})
    wanted = budget["spec"]["selector"]["matchLabels"]
    return bool(budget["metadata"]["namespace"] == pod["metadata"]["namespace"] and wanted.items() <= labels.items())
