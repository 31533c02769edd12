"""Reader of a NodeResourceTopology of either API group: a node's NUMA zones, its kubelet's policies, and its power.

Source: topology.node.k8s.io v1alpha1 and v1alpha2; gocrane/api topology v1alpha1.
"""

from __future__ import annotations

import re

import msgspec

from hetsched.contracts.cpuset import parse_cpuset
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.contracts.objects.kubelet_options import bounded, parse_options
from hetsched.contracts.objects.node_report import (
    POWER_STATES,
    KubeletGrant,
    NumaReport,
    NumaZone,
    PowerReport,
    zone_problem,
)
from hetsched.contracts.objects.pinned_memory import is_memory, parse_kinds
from hetsched.contracts.remedies import ADD_FIELD
from hetsched.contracts.units import CPU, INT64_MAX, parse_amount

from .fields import FieldView, unique_names

POWER_PROBLEM = "PowerUnreadable"
STATIC_MEMORY = "hetsched.io/static-memory"
_GRANTS = "hetsched.io/kubelet-grants"
_WATTS = re.compile(r"[0-9]{1,9}", re.ASCII)
_MAX_ZONES = 1024
_TOPOLOGY_POLICIES = {
    f"{name}{scope.capitalize()}Level": (policy, scope)
    for name, policy in (
        ("SingleNUMANode", "single-numa-node"), ("Restricted", "restricted"), ("BestEffort", "best-effort"),
        ("None", "none"),
    )
    for scope in ("container", "pod")
}  # fmt: skip


def numa(root: FieldView, problems: list[str]) -> NumaReport:
    """Read the NUMA zones and kubelet policies of a NodeResourceTopology of either API group."""
    attributes = _attributes(root)
    crane = root.view("craneManagerPolicy")
    deprecated = next(iter(root.texts("topologyPolicies")), "")
    policy, scope = _TOPOLOGY_POLICIES.get(deprecated, (None, None))
    if "craneManagerPolicy" in root:
        # If crane's policy is Static, crane pins CPUs and the kubelet must not, so the kubelet's policy is none.
        cpu = {"Static": "none", "None": "static"}.get(crane.text("cpuManagerPolicy"))
        # craneManagerPolicy states only crane's topology policy. If the kubelet pins CPUs, its topology policy is
        # unknown.
        if crane.text("topologyManagerPolicy") == "SingleNUMANodePodLevel" and cpu != "static":
            policy, scope = "single-numa-node", "pod"
        elif crane.text("topologyManagerPolicy") == "None":
            policy, scope = "none", None
    else:
        cpu = attributes.get("cpuManagerPolicy")
    views = [view for view in root.views("zones") if view.text("type", "Node") == "Node"]
    unique_names(views, "two zones are named {name}")
    if len(views) > _MAX_ZONES:
        root.fail(Message("may have at most {n} zones", n=_MAX_ZONES), "zones")
    zones = tuple(_zone(view, problems) for view in views)
    named: set[int] = set()
    for view, zone in zip(views, zones, strict=True):
        cpus = parse_cpuset(zone.cpus or "")
        if not named.isdisjoint(cpus):
            message = Message("CPU {n} is also in another zone", n=min(named & cpus))
            view.fail(message, "attributes", code="CpuDuplicate", hint="Remove it from one of the zones")
        named |= cpus
    return NumaReport(
        zones=zones,
        cpu_manager_policy=cpu and cpu.lower(),
        topology_manager_policy=attributes.get("topologyManagerPolicy", policy),
        topology_manager_scope=attributes.get("topologyManagerScope", scope),
        reserved_cpus=_cpus(root, attributes, "reservedSystemCPUs")
        or _cpus(root, attributes, "go.crane.io/reserved-system-cpus"),
        cpu_manager_options=bounded(parse_options(attributes.get("cpuManagerPolicyOptions", ""))),
        topology_manager_options=bounded(parse_options(attributes.get("topologyManagerPolicyOptions", ""))),
        memory_manager_policy=attributes.get("memoryManagerPolicy"),
        sockets=_groups(root, attributes, "hetsched.io/sockets"),
        caches=_groups(root, attributes, "hetsched.io/caches"),
        grants=_grants(root, attributes.get(_GRANTS)),
    )


def _grants(root: FieldView, text: str | None) -> tuple[KubeletGrant, ...]:
    """Read the kubelet's grants to pods from an attribute that an export wrote."""
    if text is None:
        return ()
    try:
        grants = msgspec.json.decode(text, type=tuple[KubeletGrant, ...])
    except (msgspec.DecodeError, RecursionError):
        root.fail("is not a list of the kubelet's allocations to pods", "attributes", code="GrantsMalformed")
    for grant in grants:
        _cpus(root, {_GRANTS: grant.cpus}, _GRANTS)
        if any(count < 0 for counts in grant.devices.values() for count in counts.values()):
            root.fail("contains a negative number of devices", "attributes", code="GrantsMalformed")
        if any(not is_memory(one.kind) or not 0 < one.size <= INT64_MAX for one in grant.memory):
            root.fail("contains an invalid amount of memory", "attributes", code="GrantsMalformed")
    return grants


def power(root: FieldView, problems: list[str]) -> PowerReport | None:
    """Read the power attributes of a NodeResourceTopology, or return None if it has none.

    Invalid attributes are treated as absent.
    """
    attributes = _attributes(root)
    state, watts = attributes.get("powerState"), attributes.get("powerHeadroomWatts")
    if state is not None and state.lower() not in POWER_STATES:
        problems.append(f"{POWER_PROBLEM}: powerState must be one of {', '.join(POWER_STATES)}, not {state[:40]!r}")
        state = None
    if watts is not None and not _WATTS.fullmatch(watts):
        problems.append(f"{POWER_PROBLEM}: powerHeadroomWatts must be a whole number of watts, not {watts[:40]!r}")
        watts = None
    if state is None and watts is None:
        return None
    return PowerReport(state and state.lower(), None if watts is None else int(watts))


def _attributes(view: FieldView) -> dict[str, str]:
    """Read attributes: a list of names and values or (crane) a mapping."""
    if isinstance(view.value.get("attributes"), dict):
        return view.text_map("attributes")
    return {item.text("name"): item.text("value") for item in view.views("attributes")}


def _zone(view: FieldView, problems: list[str]) -> NumaZone:
    attributes = _attributes(view)
    capacity: dict[str, int] = {}
    allocatable: dict[str, int] = {}
    available: dict[str, int] = {}
    if isinstance(view.value.get("resources"), dict):
        resources = view.view("resources")
        capacity, allocatable = resources.amounts("capacity"), resources.amounts("allocatable")
        available = resources.amounts("available")
    else:
        for item in view.views("resources"):
            resource = item.text("name")
            for into, key in (
                (capacity, "capacity"), (allocatable, "allocatable"), (available, "available")
            ):  # fmt: skip
                if key in item:
                    try:
                        into[resource] = parse_amount(resource, item.value[key])
                    except InputError as error:
                        raise error.at(item.place(key)) from None
    name = view.text("name")
    if not name:
        view.fail("is required", "name", hint=ADD_FIELD)
    siblings = _groups(view, attributes, "hetsched.io/siblings")
    return NumaZone(
        name=name,
        cpus=_cpus(view, attributes, "hetsched.io/cpus"),
        siblings=siblings,
        capacity=capacity,
        allocatable=allocatable or capacity,
        offline_capacity_millis=_offline_capacity(name, attributes, problems),
        costs={item.text("name"): item.integer("value") for item in view.views("costs")},
        available=available if available != (allocatable or capacity) else {},
        parent=view.text("parent") or None,
        assignable=_assignable(view, attributes.get(STATIC_MEMORY)),
    )


def _assignable(view: FieldView, text: str | None) -> dict[str, int] | None:
    """Read the memory of a zone that the static memory manager may assign, such as `memory=4Gi,hugepages-2Mi=1Gi`."""
    if text is None:
        return None
    try:
        return parse_kinds(text)
    except InputError as error:
        raise error.at(f"{view.place('attributes')}[{STATIC_MEMORY!r}]") from None


def _groups(view: FieldView, attributes: dict[str, str], key: str) -> str | None:
    """Read groups of CPUs such as `0,4;1,5`."""
    text = attributes.get(key)
    for group in (text or "").split(";"):
        _cpus(view, {key: group}, key)
    return text


def _cpus(view: FieldView, attributes: dict[str, str], key: str) -> str | None:
    text = attributes.get(key)
    if text is None:
        return None
    try:
        parse_cpuset(text)
    except InputError as error:
        raise error.at(f"{view.place('attributes')}[{key!r}]") from None
    return text.strip()


def _offline_capacity(zone: str, attributes: dict[str, str], problems: list[str]) -> int | None:
    """Read a zone's capacity for offline work: None if absent, 0 if unreadable, so that the zone is not used."""
    text = attributes.get("offline_capacity")
    if text is None:
        return None
    try:
        return parse_amount(CPU, text)
    except InputError as error:
        problems.append(zone_problem(zone, error.message))
        return 0
