"""Reader of the topology levels of a gang.

Sources, which may be combined:
    required        `spec.schedulingConstraints.topology` of a native PodGroup, or `podset-required-topology` of the pod
    preferred       `podset-preferred-topology` of the pod: these levels are tried within the required domain, if any
    unconstrained   `podset-unconstrained-topology: "true"`: no levels, which excludes the other annotations
The annotations have the prefix `kueue.x-k8s.io/` or `hetsched.io/`. A value is the key of a node label; under
hetsched's prefix it may be a list of keys, separated by commas, the narrowest level first. For a single key that is a
level of a Kueue Topology, the wider levels of the Topology follow. If several Topologies have this level, the first by
name is used. A pod without a gang has no domains: hetsched's annotations are then a problem, and Kueue's are ignored,
because Kueue itself selects the nodes of such pods.
Source: Kubernetes scheduling.k8s.io/v1alpha2 to v1beta1, TopologyConstraint; Kueue, apis/kueue/v1beta1
topology_types.go and "Topology Aware Scheduling".
"""

from __future__ import annotations

from collections.abc import Mapping

from hetsched.contracts.errors import Problem
from hetsched.contracts.message import Message, joined
from hetsched.contracts.objects.wishes import GROUP_TOPOLOGY
from hetsched.contracts.objects.workload import GangTopology
from hetsched.contracts.remedies import WRITE_KEY

from .objects import keys
from .objects.demands import Problems, Texts
from .objects.fields import FieldView, is_qualified_name

MAX_LEVELS = 16  # as in a Kueue Topology
_CODE = "GangTopologyInvalid"
_FAMILIES = (keys.REQUIRED_TOPOLOGY, keys.PREFERRED_TOPOLOGY, keys.UNCONSTRAINED_TOPOLOGY)
_OWN_KEYS = tuple(own for _, own in _FAMILIES)
_BOOLEANS = ("true", "false")


def topology_levels(root: FieldView) -> tuple[str, ...]:
    """Return the node labels of a Kueue Topology, the widest level first."""
    levels = root.view("spec").views("levels")
    for level in levels:
        if not is_qualified_name(level.text("nodeLabel")):
            level.fail("is not a valid label key", "nodeLabel", code="LabelInvalid", hint=WRITE_KEY)
    return tuple(level.text("nodeLabel") for level in levels)


def required_topology(spec: FieldView) -> tuple[str, bool]:
    """Return the topology key of a native PodGroup ("" for none), and whether its constraints are supported."""
    constraints = spec.view("schedulingConstraints")
    if not constraints.value:
        return "", True
    entries = constraints.views("topology") if constraints.value.keys() == {"topology"} else []
    if len(entries) != 1 or entries[0].value.keys() != {"key"}:
        return "", False
    key = entries[0].text("key")
    if not is_qualified_name(key):
        entries[0].fail("is not a valid label key", "key", code="LabelInvalid", hint=WRITE_KEY)
    return key, True


def gang_topology(
    annotations: Texts, group_key: str, topologies: Mapping[str, tuple[str, ...]], problems: Problems
) -> GangTopology | None:
    """Return the topology levels of a gang member, or None if its gang has none.

    `group_key` is the topology key of the PodGroup ("" for none), and `topologies` the known Topologies of Kueue.
    """
    if not group_key and not any(key in annotations for family in _FAMILIES for key in family):
        return None
    found: list[Problem] = []
    required = _levels(annotations, keys.REQUIRED_TOPOLOGY, topologies, found)
    preferred = _levels(annotations, keys.PREFERRED_TOPOLOGY, topologies, found)
    unconstrained = _stated(annotations, keys.UNCONSTRAINED_TOPOLOGY, found)
    if unconstrained and unconstrained[1] not in _BOOLEANS:
        template = "the value must be one of {names}, not {value}"
        message = Message(template, names=joined(", ", _BOOLEANS), value=repr(unconstrained[1][:40]))
        found.append(Problem(_CODE, unconstrained[0], message))
    elif unconstrained and unconstrained[1] == "true" and (required or preferred or group_key):
        others = [name for name in (*keys.REQUIRED_TOPOLOGY, *keys.PREFERRED_TOPOLOGY) if name in annotations]
        names = joined(", ", [unconstrained[0], *(others or [GROUP_TOPOLOGY])])
        found.append(_contradiction(unconstrained[0], Message("{names} contradict each other", names=names)))
    if group_key and required and required[0] != group_key:
        template = "{names} contradict each other"
        names = joined(", ", [f"{GROUP_TOPOLOGY} {group_key}", required[0]])
        found.append(
            _contradiction(_stated(annotations, keys.REQUIRED_TOPOLOGY, [])[0], Message(template, names=names))
        )
    problems += found
    if group_key and not required:
        required = _with_wider((group_key,), topologies)
    if found or not (required or preferred):
        return None
    if required and required[0] in preferred:
        preferred = preferred[: preferred.index(required[0])]
    return GangTopology(tuple(level for level in preferred if level not in required), required)


def report_without_gang(annotations: Texts, problems: Problems) -> None:
    """Add a problem for each topology annotation of hetsched on a pod without a gang."""
    for key in _OWN_KEYS:
        if key in annotations:
            message = Message(
                "the pod belongs to no gang: add the label {label} or remove the annotation", label=keys.GANG_NAME
            )
            problems.append(Problem(_CODE, key, message))


def _levels(
    annotations: Texts, family: tuple[str, str], topologies: Mapping[str, tuple[str, ...]], problems: Problems
) -> tuple[str, ...]:
    """Return the levels that an annotation states, with the wider levels of a Topology; () if it is absent or wrong."""
    stated = _stated(annotations, family, problems)
    if not stated:
        return ()
    key, value = stated
    levels = tuple(part.strip() for part in value.split(",")) if key == family[1] else (value,)
    wrong = [level for level in levels if not is_qualified_name(level)]
    if wrong:
        message = Message("{text} is not a valid label key: name a label of the nodes", text=repr(wrong[0][:80]))
    elif len(set(levels)) < len(levels):
        message = Message("the levels {names} are not distinct: name each level once", names=value[:200])
    elif len(levels) > MAX_LEVELS:
        message = Message("may have at most {n} levels", n=MAX_LEVELS)
    else:
        return _with_wider(levels, topologies)
    problems.append(Problem(_CODE, key, message))
    return ()


def _with_wider(levels: tuple[str, ...], topologies: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return a single level with the wider levels of the first Topology that has it; lists are returned unchanged."""
    if len(levels) > 1:
        return levels
    for _, widest_first in sorted(topologies.items()):
        if levels[0] in widest_first:
            return widest_first[widest_first.index(levels[0]) :: -1]
    return levels


def _stated(annotations: Texts, family: tuple[str, str], problems: Problems) -> tuple[str, ...]:
    """Return the key and the value of the first annotation of a family, () if absent or contradictory."""
    stated = [(key, annotations[key].strip()) for key in family if key in annotations]
    if len({value for _, value in stated}) > 1:
        names = joined(", ", [f"{key} {value[:80]}" for key, value in stated])
        problems.append(_contradiction(family[1], Message("{names} contradict each other", names=names)))
        return ()
    return stated[0] if stated else ()


def _contradiction(field: str, message: Message) -> Problem:
    return Problem("AnnotationContradiction", field, message)
