"""Reader of gangs: PodGroups, and the fields and labels by which a pod names its gang."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

from hetsched.contracts.errors import Problem
from hetsched.contracts.message import Message
from hetsched.contracts.objects.workload import DisruptionMode, GangMember, MinField, PodGroup

from .gang_topology import required_topology
from .objects import keys
from .objects.demands import Problems, Texts, number
from .objects.fields import FieldView

MAX_GROUP_NAME = 63
_UNSUPPORTED_OF_GROUP = ("resourceClaims", "parentCompositePodGroupName")


def pod_group(spec: FieldView) -> PodGroup:
    """Read a PodGroup of scheduler-plugins."""
    return PodGroup(
        min_member=spec.integer("minMember", 1, least=1, most=2**31 - 1),
        timeout_seconds=spec.maybe_integer("scheduleTimeoutSeconds", most=2**31 - 1),
        min_resources=tuple(sorted(spec.amounts("minResources").items())),
    )


def native_pod_group(spec: FieldView, policy: str = "schedulingPolicy") -> PodGroup:
    """Read a PodGroup of Kubernetes' own API; a group without a gang policy may start with any number of members."""
    gang = spec.view(policy).view("gang")
    topology, is_supported = required_topology(spec)
    unsupported = [field for field in _UNSUPPORTED_OF_GROUP if spec.value.get(field)]
    if not is_supported:
        unsupported.insert(0, "schedulingConstraints")
    return PodGroup(
        min_member=gang.integer("minCount", 1, least=1, most=2**31 - 1),
        native=True,
        unsupported=f"spec.{unsupported[0]}" if unsupported else "",
        required_topology=topology,
        disruption_mode=_disruption_mode(spec),
    )


def _disruption_mode(spec: FieldView) -> DisruptionMode:
    """Read the mode of a native PodGroup: a text in v1alpha2, a union since v1alpha3; both default to single pods."""
    if isinstance(spec.value.get("disruptionMode"), str):
        mode = spec.text("disruptionMode")
        if mode not in ("Pod", "PodGroup"):
            spec.fail("is neither Pod nor PodGroup", "disruptionMode")
        return "All" if mode == "PodGroup" else "Single"
    return "All" if "all" in spec.view("disruptionMode") else "Single"


def gang_member(labels: Texts, find_group: Callable[[str], PodGroup | None], problems: Problems) -> GangMember | None:
    """Read the gang that a pod belongs to; `find_group` looks up PodGroups of the pod's namespace.

    A size in the pod's own labels takes precedence over the size of a PodGroup of the same name.
    """
    key = keys.GANG_NAME if keys.GANG_NAME in labels else keys.POD_GROUP
    if key not in labels:
        return None
    name = labels[key]
    if not name:
        problems.append(Problem("GangInvalid", key, Message("the gang's name is empty")))
        return None
    group = find_group(name)
    least = group.min_member if group else 0
    stated = key == keys.GANG_NAME and keys.GANG_MIN_AVAILABLE in labels
    if stated:
        least = number(labels, keys.GANG_MIN_AVAILABLE, problems, "GangInvalid", 1, 2**31) or 0
    if group is None:
        return GangMember(name, least)
    field: MinField = keys.GANG_MIN_AVAILABLE if stated else group.min_field
    return GangMember(
        name, least, group.timeout_seconds, group.min_resources, field, disruption_mode=group.disruption_mode
    )


def native_group(spec: FieldView) -> tuple[str, str]:
    """Return the PodGroup that the built-in pod fields name, and the path of an unsupported field ("" if none is set).

    A group of a Workload (v1alpha1) is named `<workload>.<group>`. Names over the maximum length of a label value are
    shortened, because gang names must be valid label values.
    """
    name, field = spec.view("schedulingGroup").text("podGroupName"), ""
    reference = spec.view("workloadRef")
    if not name and "name" in reference:
        name = f"{reference.text('name')}.{reference.text('podGroup')}"
        field = "spec.workloadRef.podGroupReplicaKey" if reference.text("podGroupReplicaKey") else ""
    return group_name(name), field


def group_name(name: str) -> str:
    """Return the internal name of a gang: a long name is truncated and gets a digest as suffix."""
    if len(name) <= MAX_GROUP_NAME:
        return name
    return f"{name[: MAX_GROUP_NAME - 17]}-{blake2b(name.encode(), digest_size=8).hexdigest()}"
