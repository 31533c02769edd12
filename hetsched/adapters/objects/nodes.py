"""A Kubernetes Node and the objects that describe it further, as a `NodeReport`.

Rule: allocatable counts (capacity where it is absent). A node without a Ready condition is taken as ready: a file
written by hand seldom has conditions. What a node's own labels say wrongly becomes a note in `problems` and the fact
stays unknown; it never refuses the file.
Native ISA, the first that is present: annotation or label `hetsched.io/isa`, label `ARCH`, feature labels of node
feature discovery, `kubernetes.io/arch`. The last two are lower bounds (`complete` false): an architecture label says no
more than the base that every node of that name has by definition (`amd64`, `arm64`, `rv64i`), and the feature labels
of x86 leave out what their deny list holds, levels 2 and 3 included; Arm's leave out nothing. So a demand beyond the
bound is unknown there: refused now, but never called impossible. Where `hetsched.io/isa-bound` says that what discovery
wrote is a lower bound, it is one, and its `ARCH` is passed over for what it was drawn from.
Source: Kubernetes core/v1 NodeStatus; NFD docs/usage/features; topology.node.k8s.io v1alpha1 and v1alpha2;
gocrane/api topology v1alpha1.
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from hetsched import isa
from hetsched.contracts.cards import MAX_CARD_UUID, MAX_CARDS, vendor_of
from hetsched.contracts.cpuset import parse_cpuset
from hetsched.contracts.errors import InputError
from hetsched.contracts.node_report import (
    LINK_KINDS,
    POWER_STATES,
    CardLink,
    GpuCard,
    IsaReport,
    NodeReport,
    NumaReport,
    NumaZone,
    PowerReport,
    Usage,
)
from hetsched.contracts.units import CPU, GPU_RESOURCES, parse_amount

from . import keys
from .demands import ARCH_BASE
from .fields import View, metadata, unique_names
from .foreign_gpu_sharing import registered_cards
from .node_labels import is_short_for
from .selectors import taint

NFD_PREFIX = "feature.node.kubernetes.io/cpu-cpuid."
_NFD_LEVEL = re.compile(r"X86_64_V([1-4])")
# NFD's names of flags that Linux calls otherwise; all others are the same word in capitals.
_NFD_X86 = {
    "CMPXCHG8": "cx8", "FMA3": "fma", "LAHF": "lahf_lm", "LZCNT": "abm", "OSXSAVE": "xsave", "SSE3": "pni",
    "SSE4": "sse4_1", "SSE42": "sse4_2", "X87": "fpu",
}  # fmt: skip
ZONE_PROBLEM = "ZoneCapacityUnreadable"
POWER_PROBLEM = "PowerUnreadable"
STALE_PROBLEM = "FactsStale"
_WATTS = re.compile(r"[0-9]{1,9}", re.ASCII)
_MAX_ZONES = 1024
_MOST_ADDRESSES = 16
_TOPOLOGY_POLICIES = {
    f"{name}{scope.capitalize()}Level": (policy, scope)
    for name, policy in (
        ("SingleNUMANode", "single-numa-node"), ("Restricted", "restricted"), ("BestEffort", "best-effort"),
        ("None", "none"),
    )
    for scope in ("container", "pod")
}  # fmt: skip


def node(root: View) -> NodeReport:
    """Read a Node."""
    meta, spec, status = metadata(root), root.view("spec"), root.view("status")
    labels = meta.labels()
    annotations = {
        key: value
        for key, value in meta.annotations().items()
        if key not in ("kubectl.kubernetes.io/last-applied-configuration", keys.EXPORT_PROBLEMS)
    }
    problems: list[str] = []
    isa_offered = isa_report(labels, annotations, problems)
    if keys.FACTS_STALE in annotations:
        since = annotations[keys.FACTS_STALE][:40]
        problems.append(f"{STALE_PROBLEM}: what is known of this node was confirmed last at {since}")
    if keys.EXPORT_PROBLEMS in meta.view("annotations"):
        problems.extend(_exported_problems(meta.view("annotations")))
    registered = registered_cards(annotations, problems)
    ready = True
    for condition in status.views("conditions"):
        if condition.text("type") == "Ready":
            ready = condition.text("status") == "True"
    return NodeReport(
        name=meta.text("name"),
        uid=meta.text("uid"),
        labels=labels,
        annotations=annotations,
        taints=tuple(taint(view) for view in spec.views("taints")),
        unschedulable=spec.flag("unschedulable"),
        ready=ready,
        allocatable=status.amounts("allocatable" if "allocatable" in status else "capacity"),
        isa=isa_offered,
        gpus=registered,
        problems=tuple(problems),
        source="file",
        addresses=_addresses(status),
    )


def _addresses(status: View) -> tuple[str, ...]:
    """Read the addresses by which other systems may know a node; odd ones name nobody."""
    found = (view.value.get("address") for view in status.views("addresses"))
    texts = dict.fromkeys(text for text in found if isinstance(text, str) and 0 < len(text) <= 253)
    return tuple(texts)[:_MOST_ADDRESSES]


def _exported_problems(annotations: View) -> list[str]:
    try:
        return msgspec.json.decode(annotations.text(keys.EXPORT_PROBLEMS), type=list[str])
    except (msgspec.DecodeError, RecursionError) as error:
        annotations.fail(f"it is not a list of texts: {error}", keys.EXPORT_PROBLEMS)


# -- instruction sets ------------------------------------------------------------------------------------------------


def isa_report(labels: dict[str, str], annotations: dict[str, str], problems: list[str]) -> IsaReport:
    """Read what a node's labels and annotations say about its instruction sets."""
    native, source, complete = _native(labels, annotations, problems)
    emulated = _several(annotations.get(keys.EMULATED_ISA) or labels.get(keys.EMULATED_ISA), problems)
    cross = _several(annotations.get(keys.CROSS_ISA) or labels.get(keys.CROSS_ISA), problems)
    either = _several(labels.get(keys.QEMU), problems)
    if is_short_for(labels.get(keys.QEMU, ""), emulated + cross):
        either = ()  # the others say which of the two it is
    return IsaReport(
        native=native,
        emulated=tuple(dict.fromkeys(emulated + either)),
        cross=tuple(dict.fromkeys(cross + either)),
        source=source if native is not None else "",
        complete=complete,
        arch=labels.get(keys.KUBERNETES_ARCH, "") if native is None else "",
    )


def _native(labels: dict[str, str], annotations: dict[str, str], problems: list[str]) -> tuple[str | None, str, bool]:
    exact = annotations.get(keys.ISA_BOUND) != keys.LOWER
    for kind, texts, key in (
        ("annotation", annotations, keys.ISA),
        ("label", labels, keys.ISA),
        ("label", labels, keys.ARCH),
    ):
        if key in texts and (exact or key != keys.ARCH):
            return _offer(texts[key], problems), f"{kind} {key}", exact
    arch = labels.get(keys.KUBERNETES_ARCH, "")
    base = ARCH_BASE.get(arch)
    words = [
        key.removeprefix(NFD_PREFIX) for key, value in labels.items() if key.startswith(NFD_PREFIX) and value == "true"
    ]
    if words and arch in ("amd64", "arm64"):
        offered = _from_features(arch, words)
        if offered != base:
            return offered, NFD_PREFIX.rstrip("."), arch == "arm64"
    return base, keys.KUBERNETES_ARCH, base is None


def _from_features(arch: str, words: list[str]) -> str:
    """Return the requirement string that feature labels add up to; words that the lattice does not know are left."""
    level = ARCH_BASE[arch]
    if arch == "amd64":
        found = [int(match[1]) for match in map(_NFD_LEVEL.fullmatch, words) if match]
        level = f"x86-64-v{max(found)}" if found else level
        words = [_NFD_X86.get(word, word.lower()) for word in words if not _NFD_LEVEL.fullmatch(word)]
    known = sorted(word.lower() for word in words if _is_feature(f"{level}+{word.lower()}"))
    return "+".join((level, *known))


@lru_cache(maxsize=4096)
def _is_feature(text: str) -> bool:
    try:
        isa.parse(text, source="node-label")
    except InputError:
        return False
    return True


def _several(text: str | None, problems: list[str]) -> tuple[str, ...]:
    """Read several offers, separated by commas or white space."""
    parts = re.split(r"[,\s]+", text.strip()) if text and text.strip() else []
    return tuple(offer for offer in (_offer(part, problems) for part in parts) if offer is not None)


def _offer(text: str, problems: list[str]) -> str | None:
    try:
        isa.parse(text.strip(), source="node-label")
    except InputError as error:
        problems.append(f"{error.code}: {text[:80]!r}: {error.message}")
        return None
    return text.strip()


# -- cards and use -----------------------------------------------------------------------------------------------------


def cards(root: View) -> tuple[GpuCard, ...]:
    """Read the cards of a NodeGpu."""
    found: list[GpuCard] = []
    seen: set[int] = set()
    uuids: set[str] = set()
    for view in root.view("spec").views("cards"):
        if "index" not in view:
            view.fail("is required", "index")
        index = view.integer("index", most=MAX_CARDS - 1)
        if index in seen:
            view.fail(f"two cards have index {index}", "index", code="CardDuplicate")
        seen.add(index)
        uuid = view.text("uuid")
        if len(uuid) > MAX_CARD_UUID:
            view.fail(f"may have at most {MAX_CARD_UUID} characters", "uuid")
        if uuid in uuids:
            view.fail(f"two cards have the uuid {uuid!r}", "uuid", code="CardDuplicate")
        uuids |= {uuid} - {""}
        model = view.text("model") or None
        found.append(
            GpuCard(
                index=index,
                uuid=uuid or None,
                model=model,
                vendor=view.text("vendor").lower() or vendor_of(model or ""),
                memory_mib=view.maybe_integer("memoryMiB", most=2**40),
                cores=view.maybe_integer("cores", most=2**31),
                fp32_tflops=view.maybe_number("fp32Tflops"),
                bandwidth_gbs=view.maybe_number("bandwidthGBs"),
                clock_mhz=view.maybe_integer("clockMHz", most=2**31),
                numa_zone=view.text("numaZone") or None,
                healthy=view.flag("healthy", True) and not view.flag("maintenance", False),
                maintenance=view.flag("maintenance", False),
                links=_links(view, index),
            )
        )
    return tuple(found)


def _links(card: View, index: int) -> tuple[CardLink, ...]:
    """Read how a card reaches others of its node."""
    found: dict[int, CardLink] = {}
    for view in card.views("links"):
        if "to" not in view:
            view.fail("is required", "to")
        to = view.integer("to", most=MAX_CARDS - 1)
        if to == index or to in found:
            view.fail(f"card {index} has {'a link to itself' if to == index else f'two links to card {to}'}", "to")
        found[to] = CardLink(to, view.choice("kind", LINK_KINDS), view.maybe_number("bandwidthGBs", most=1e6))
    return tuple(found[to] for to in sorted(found))


def with_vendors(report: NodeReport) -> NodeReport:
    """Fill in the vendor of cards whose model does not tell, where the node offers one vendor's resource only."""
    offered = [resource.split(".", 1)[0] for resource in GPU_RESOURCES if report.allocatable.get(resource)]
    if len(offered) != 1 or not report.gpus or all(card.vendor for card in report.gpus):
        return report
    named = tuple(card if card.vendor else msgspec.structs.replace(card, vendor=offered[0]) for card in report.gpus)
    return msgspec.structs.replace(report, gpus=named)


def usage(root: View) -> Usage:
    """Read a NodeUsage."""
    return Usage(root.amounts("usage"), root.text("observedAt"), root.text("source"), root.flag("stale"))


# -- NUMA --------------------------------------------------------------------------------------------------------


def numa(root: View, problems: list[str]) -> NumaReport:
    """Read a NodeResourceTopology of either group."""
    attributes = _attributes(root)
    crane = root.view("craneManagerPolicy")
    deprecated = next(iter(root.texts("topologyPolicies")), "")
    policy, scope = _TOPOLOGY_POLICIES.get(deprecated, (None, None))
    if "craneManagerPolicy" in root:
        # crane pins where its policy is Static, and then the kubelet must not.
        cpu = {"Static": "none", "None": "static"}.get(crane.text("cpuManagerPolicy"))
        # The topology policy is crane's too; which one a kubelet that pins follows, this object does not say.
        if crane.text("topologyManagerPolicy") == "SingleNUMANodePodLevel" and cpu != "static":
            policy, scope = "single-numa-node", "pod"
        elif crane.text("topologyManagerPolicy") == "None":
            policy, scope = "none", None
    else:
        cpu = attributes.get("cpuManagerPolicy")
    views = [view for view in root.views("zones") if view.text("type", "Node") == "Node"]
    unique_names(views, "zones")
    if len(views) > _MAX_ZONES:
        root.fail(f"may have at most {_MAX_ZONES} zones", "zones")
    zones = tuple(_zone(view, problems) for view in views)
    named: set[int] = set()
    for view, zone in zip(views, zones, strict=True):
        cpus = parse_cpuset(zone.cpus or "")
        if not named.isdisjoint(cpus):
            view.fail(f"CPU {min(named & cpus)} is in another zone too", "attributes", code="CpuDuplicate")
        named |= cpus
    return NumaReport(
        zones=zones,
        cpu_manager_policy=cpu and cpu.lower(),
        topology_manager_policy=attributes.get("topologyManagerPolicy", policy),
        topology_manager_scope=attributes.get("topologyManagerScope", scope),
        reserved_cpus=_cpus(root, attributes, "reservedSystemCPUs")
        or _cpus(root, attributes, "go.crane.io/reserved-system-cpus"),
    )


def power(root: View, problems: list[str]) -> PowerReport | None:
    """Read the power attributes of a NodeResourceTopology, None where it has none; a wrong one is as if absent."""
    attributes = _attributes(root)
    state, watts = attributes.get("powerState"), attributes.get("powerHeadroomWatts")
    if state is not None and state.lower() not in POWER_STATES:
        problems.append(f"{POWER_PROBLEM}: powerState is one of {', '.join(POWER_STATES)}, not {state[:40]!r}")
        state = None
    if watts is not None and not _WATTS.fullmatch(watts):
        problems.append(f"{POWER_PROBLEM}: powerHeadroomWatts is a whole number of watts, not {watts[:40]!r}")
        watts = None
    if state is None and watts is None:
        return None
    return PowerReport(state and state.lower(), None if watts is None else int(watts))


def _attributes(view: View) -> dict[str, str]:
    """Read attributes, a list of name and value or (crane) a mapping."""
    if isinstance(view.value.get("attributes"), dict):
        return view.text_map("attributes")
    return {item.text("name"): item.text("value") for item in view.views("attributes")}


def _zone(view: View, problems: list[str]) -> NumaZone:
    attributes = _attributes(view)
    capacity: dict[str, int] = {}
    allocatable: dict[str, int] = {}
    if isinstance(view.value.get("resources"), dict):
        resources = view.view("resources")
        capacity, allocatable = resources.amounts("capacity"), resources.amounts("allocatable")
    else:
        for item in view.views("resources"):
            resource = item.text("name")
            for into, key in ((capacity, "capacity"), (allocatable, "allocatable")):
                if key in item:
                    try:
                        into[resource] = parse_amount(resource, item.value[key])
                    except InputError as error:
                        raise error.at(item.place(key)) from None
    name = view.text("name")
    if not name:
        view.fail("is required", "name")
    siblings = attributes.get("hetsched.io/siblings")
    for group in (siblings or "").split(";"):
        _cpus(view, {"hetsched.io/siblings": group}, "hetsched.io/siblings")
    return NumaZone(
        name=name,
        cpus=_cpus(view, attributes, "hetsched.io/cpus"),
        siblings=siblings,
        capacity=capacity,
        allocatable=allocatable or capacity,
        offline_capacity_millis=_offline_capacity(name, attributes, problems),
        costs={item.text("name"): item.integer("value") for item in view.views("costs")},
    )


def _cpus(view: View, attributes: dict[str, str], key: str) -> str | None:
    text = attributes.get(key)
    if text is None:
        return None
    try:
        parse_cpuset(text)
    except InputError as error:
        raise error.at(f"{view.place('attributes')}[{key!r}]") from None
    return text.strip()


def _offline_capacity(zone: str, attributes: dict[str, str], problems: list[str]) -> int | None:
    """Read what offline work may use of a zone; where it cannot be read, the zone is not usable (0)."""
    text = attributes.get("offline_capacity")
    if text is None:
        return None
    try:
        return parse_amount(CPU, text)
    except InputError as error:
        problems.append(f"{ZONE_PROBLEM}: zone {zone}: {error.message}")
        return 0
