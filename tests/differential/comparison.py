"""Compare the verdicts of kube-scheduler's code and of hetsched, and name the intended differences.

docs/reference/kubernetes-differences.md gives the reason for each intended difference; a test compares the names. All
other differences are unexplained, and fail the tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from . import verdicts
from .clusters import Case, Object
from .verdicts import FEASIBLE, RESOLVABLE, UNRESOLVABLE, KubeScheduler, PodVerdict

# The names of the intended differences.
SINGLE_POD_CLAIM = "ReadWriteOncePod"
FEWER_VICTIMS = "FewerVictims"
VICTIMS_FOUND = "VictimsFound"
OTHER_NODE = "EqualNode"
INTENDED = (SINGLE_POD_CLAIM, FEWER_VICTIMS, VICTIMS_FOUND, OTHER_NODE)
_COUNTED = 2**31


class Difference(msgspec.Struct):
    """A difference in the verdicts for one pod; `name` is the name of an intended difference, or empty."""

    pod: Object
    text: str
    name: str = ""


class Cost(msgspec.Struct, frozen=True, order=True):
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
        yield from _of_nodes(pod, theirs, ours)
        if FEASIBLE not in theirs.nodes.values():
            yield from _of_victims(case, scheduler, pod, theirs, ours)


def _of_nodes(pod: Object, theirs: PodVerdict, ours: PodVerdict) -> Iterator[Difference]:
    for node, state in theirs.nodes.items():
        found = ours.nodes.get(node, "unknown")
        if found == state:
            continue
        text = f"{node}: {state} ({theirs.reasons.get(node)}) and {found} ({ours.reasons.get(node)})"
        claim = (state, found) == (RESOLVABLE, UNRESOLVABLE) and "ReadWriteOncePod" in theirs.reasons[node]
        yield Difference(pod, text, SINGLE_POD_CLAIM if claim else "")


def _of_victims(
    case: Case, scheduler: KubeScheduler, pod: Object, theirs: PodVerdict, ours: PodVerdict
) -> Iterator[Difference]:
    if not theirs.selected and not ours.selected:
        return
    text = f"victims {_victims(theirs)} and {_victims(ours)}"
    if not ours.selected:
        yield Difference(pod, text)
        return
    chosen = ours.victims[ours.selected]
    remaining = [each for each in case.objects if each["kind"] != "Pod" or _key(each) not in chosen]
    (afterwards,) = scheduler.judge(msgspec.structs.replace(case, objects=remaining, pods=[pod]))
    if afterwards.nodes[ours.selected] != FEASIBLE:
        yield Difference(pod, f"{text}: the pod does not fit without hetsched's victims")
    elif not theirs.selected:
        yield Difference(pod, text, VICTIMS_FOUND)
    elif (ours.selected, chosen) != (theirs.selected, theirs.victims[theirs.selected]):
        yield _of_costs(case.objects, pod, theirs, ours, text)


def _of_costs(objects: Sequence[Object], pod: Object, theirs: PodVerdict, ours: PodVerdict, text: str) -> Difference:
    """Accept other victims if kube-scheduler's own order prefers them, or does not distinguish them."""
    cost = _cost(objects, ours.victims[ours.selected])
    their_cost = _cost(objects, theirs.victims[theirs.selected])
    if cost < their_cost:
        return Difference(pod, text, FEWER_VICTIMS)
    return Difference(pod, f"{text}, costs {their_cost} and {cost}", OTHER_NODE if cost == their_cost else "")


def _victims(verdict: PodVerdict) -> str:
    return f"{sorted(verdict.victims[verdict.selected])} on {verdict.selected}" if verdict.selected else "none"


def _cost(objects: Sequence[Object], victims: Iterable[str]) -> Cost:
    pods = [each for each in objects if each["kind"] == "Pod" and _key(each) in set(victims)]
    pods.sort(key=lambda pod: (-_priority(pod), _start(pod)))
    budgets = [each for each in objects if each["kind"] == "PodDisruptionBudget"]
    left = {budget["metadata"]["name"]: budget["status"]["disruptionsAllowed"] for budget in budgets}
    violations = 0
    for pod in pods:
        violates = False
        for budget in budgets:
            if _selects(budget, pod):
                left[budget["metadata"]["name"]] -= 1
                violates = violates or left[budget["metadata"]["name"]] < 0
        violations += violates
    highest = max(map(_priority, pods))
    oldest = min(_start(pod) for pod in pods if _priority(pod) == highest)
    return Cost(violations, highest, sum(_priority(pod) + _COUNTED for pod in pods), len(pods), -oldest)


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
