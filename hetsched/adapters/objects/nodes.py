"""Reader of a Node and the objects that describe it into a `NodeReport`.

Allocatable is used, capacity if it is absent. A node without a Ready condition counts as ready: hand-written files
seldom have conditions. An invalid value in a node's own labels becomes an entry in `problems` and the fact stays
unknown; it never rejects the file.
The native ISA comes from the first source that is present: annotation or label `hetsched.io/isa`, label `ARCH`, feature
labels of Node Feature Discovery (NFD), `kubernetes.io/arch`. The last two are lower bounds (`complete` false): an
architecture label states only the base that every node of that name has by definition (`amd64`, `arm64`, `rv64i`), and
the feature labels of x86 omit the features of their deny list; those of Arm omit none. A demand beyond the bound is
therefore unknown: refused now, but never reported as impossible. A feature that NFD names and does not deny is absent
if its label is, and so is every level above the highest level label. If `hetsched.io/isa-bound` marks the values of
discovery as a lower bound, they are one, and label `ARCH` is skipped in favour of the source that it was derived from.
Source: Kubernetes core/v1 NodeStatus; NFD docs/usage/features; topology.node.k8s.io v1alpha1 and v1alpha2;
gocrane/api topology v1alpha1.
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from hetsched import isa
from hetsched.contracts.cpuset import parse_cpuset
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.cards import MAX_CARD_UUID, MAX_CARDS, vendor_of
from hetsched.contracts.objects.kubelet_options import bounded, parse_options
from hetsched.contracts.objects.node_report import (
    LINK_KINDS,
    POWER_STATES,
    CardLink,
    GpuCard,
    IsaReport,
    KubeletGrant,
    NodeReport,
    NumaReport,
    NumaZone,
    PowerReport,
    Usage,
    zone_problem,
)
from hetsched.contracts.units import CPU, GPU_RESOURCES, parse_amount

from . import keys
from .demands import ARCH_BASE
from .fields import FieldView, metadata, unique_names
from .foreign_gpu_sharing import registered_cards
from .node_labels import is_short_for
from .selectors import taint

NFD_PREFIX = "feature.node.kubernetes.io/cpu-cpuid."
_NFD_LEVEL = re.compile(r"X86_64_V([1-4])")
# NFD's names of flags with another name in Linux; all others are the Linux name in capitals.
_NFD_X86 = {
    "CMPXCHG8": "cx8", "FMA3": "fma", "LAHF": "lahf_lm", "LZCNT": "abm", "OSXSAVE": "xsave", "SSE3": "pni",
    "SSE4": "sse4_1", "SSE42": "sse4_2", "X87": "fpu",
}  # fmt: skip
# Instruction set extensions that NFD has named since it uses cpuid v2 (2020) and that its default deny list omits.
# Newer names and level members such as MOVBE are left out, because older releases do not write them.
_NFD_NAMES = frozenset({
    "ADX", "AESNI", "AMXBF16", "AMXINT8", "AMXTILE", "AVX", "AVX2", "AVX512BF16", "AVX512BITALG", "AVX512BW",
    "AVX512CD", "AVX512DQ", "AVX512F", "AVX512IFMA", "AVX512VBMI", "AVX512VBMI2", "AVX512VL", "AVX512VNNI",
    "AVX512VPOPCNTDQ", "FMA3", "FMA4", "GFNI", "SHA", "SSE4A", "TBM", "VAES", "VPCLMULQDQ", "XOP",
})  # fmt: skip
_X86_LEVEL = re.compile(r"x86-64-v[2-4]")
_TOP_LEVEL = 4
_MOST_ABSENT = 100
POWER_PROBLEM = "PowerUnreadable"
_GRANTS = "hetsched.io/kubelet-grants"
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


def node(root: FieldView) -> NodeReport:
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


def _addresses(status: FieldView) -> tuple[str, ...]:
    """Read the addresses by which other systems may know a node; invalid ones are skipped."""
    found = (view.value.get("address") for view in status.views("addresses"))
    texts = dict.fromkeys(text for text in found if isinstance(text, str) and 0 < len(text) <= 253)
    return tuple(texts)[:_MOST_ADDRESSES]


def _exported_problems(annotations: FieldView) -> list[str]:
    try:
        return msgspec.json.decode(annotations.text(keys.EXPORT_PROBLEMS), type=list[str])
    except (msgspec.DecodeError, RecursionError) as error:
        annotations.fail(f"it is not a list of texts: {error}", keys.EXPORT_PROBLEMS)


# -- instruction sets ------------------------------------------------------------------------------------------------


def isa_report(labels: dict[str, str], annotations: dict[str, str], problems: list[str]) -> IsaReport:
    """Read a node's instruction sets from its labels and annotations."""
    native, source, complete = _native(labels, annotations, problems)
    emulated = _several(annotations.get(keys.EMULATED_ISA) or labels.get(keys.EMULATED_ISA), problems)
    cross = _several(annotations.get(keys.CROSS_ISA) or labels.get(keys.CROSS_ISA), problems)
    either = _several(labels.get(keys.QEMU), problems)
    if is_short_for(labels.get(keys.QEMU, ""), emulated + cross):
        either = ()  # the annotations distinguish emulated from cross
    return IsaReport(
        native=native,
        emulated=tuple(dict.fromkeys(emulated + either)),
        cross=tuple(dict.fromkeys(cross + either)),
        source=source if native is not None else "",
        complete=complete,
        arch=labels.get(keys.KUBERNETES_ARCH, "") if native is None else "",
        absent=() if complete or native is None else _absent(labels, annotations),
    )


def _absent(labels: dict[str, str], annotations: dict[str, str]) -> tuple[str, ...]:
    """Return features that a node whose ISA is a lower bound certainly lacks."""
    if keys.ISA_ABSENT in annotations:
        return absent_names(annotations[keys.ISA_ABSENT])
    words = _nfd_words(labels)
    if labels.get(keys.KUBERNETES_ARCH) != "amd64" or not words:
        return ()
    return _absent_words(frozenset(words))


def absent_names(text: str) -> tuple[str, ...]:
    """Parse the annotation `hetsched.io/isa-absent`; unknown features and levels are skipped."""
    names = text.split(",")[:_MOST_ABSENT]
    return tuple(name for name in names if _X86_LEVEL.fullmatch(name) or _is_feature(f"x86-64-v1+{name}"))


@lru_cache(maxsize=4096)
def _absent_words(words: frozenset[str]) -> tuple[str, ...]:
    levels = [int(match[1]) for match in map(_NFD_LEVEL.fullmatch, words) if match]
    there = isa.parse(f"x86-64-v{max(levels, default=1)}").extensions
    named = (_NFD_X86.get(word, word.lower()) for word in _NFD_NAMES - {word.upper() for word in words})
    found = {next(iter(isa.parse(f"x86-64-v1+{name}", source="node-label").explicit)) for name in named} - there
    above = [f"x86-64-v{max(levels) + 1}"] if levels and max(levels) < _TOP_LEVEL else []
    return (*above, *sorted(found))


def _native(labels: dict[str, str], annotations: dict[str, str], problems: list[str]) -> tuple[str | None, str, bool]:
    exact = annotations.get(keys.ISA_BOUND) != keys.LOWER
    for kind, texts, key in (
        ("annotation", annotations, keys.ISA),
        ("label", labels, keys.ISA),
        ("label", labels, keys.ARCH),
    ):
        if key in texts and (exact or key != keys.ARCH):
            names_features = isa.published_isa(texts[key]) == texts[key]
            return _offer(texts[key], problems), f"{kind} {key}", exact and names_features
    arch = labels.get(keys.KUBERNETES_ARCH, "")
    base = ARCH_BASE.get(arch)
    words = _nfd_words(labels)
    if words and arch in ("amd64", "arm64"):
        offered = _from_features(arch, words)
        if offered != base:
            return offered, NFD_PREFIX.rstrip("."), arch == "arm64"
    return base, keys.KUBERNETES_ARCH, base is None


def _nfd_words(labels: dict[str, str]) -> list[str]:
    return [
        key.removeprefix(NFD_PREFIX) for key, value in labels.items() if key.startswith(NFD_PREFIX) and value == "true"
    ]


def _from_features(arch: str, words: list[str]) -> str:
    """Return the requirement string for a set of feature labels; words unknown to the lattice are skipped."""
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
    offer = isa.published_isa(text).strip()
    try:
        isa.parse(offer, source="node-label")
    except InputError as error:
        problems.append(f"{error.code}: {text[:80]!r}: {error.message}")
        return None
    return offer


# -- GPUs and usage ----------------------------------------------------------------------------------------------------


def cards(root: FieldView) -> tuple[GpuCard, ...]:
    """Read the GPUs of a NodeGpu."""
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


def _links(card: FieldView, index: int) -> tuple[CardLink, ...]:
    """Read the links of a GPU to other GPUs of its node."""
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
    """Set the vendor of GPUs whose model does not identify it, if the node offers only one vendor's resource."""
    offered = [resource.split(".", 1)[0] for resource in GPU_RESOURCES if report.allocatable.get(resource)]
    if len(offered) != 1 or not report.gpus or all(card.vendor for card in report.gpus):
        return report
    named = tuple(card if card.vendor else msgspec.structs.replace(card, vendor=offered[0]) for card in report.gpus)
    return msgspec.structs.replace(report, gpus=named)


def usage(root: FieldView) -> Usage:
    """Read a NodeUsage."""
    return Usage(root.amounts("usage"), root.text("observedAt"), root.text("source"), root.flag("stale"))


# -- NUMA --------------------------------------------------------------------------------------------------------


def numa(root: FieldView, problems: list[str]) -> NumaReport:
    """Read a NodeResourceTopology of either group."""
    attributes = _attributes(root)
    crane = root.view("craneManagerPolicy")
    deprecated = next(iter(root.texts("topologyPolicies")), "")
    policy, scope = _TOPOLOGY_POLICIES.get(deprecated, (None, None))
    if "craneManagerPolicy" in root:
        # crane pins CPUs where its policy is Static; the kubelet must not pin there.
        cpu = {"Static": "none", "None": "static"}.get(crane.text("cpuManagerPolicy"))
        # The topology policy is crane's too; this object does not state the policy of a kubelet that pins.
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
        cpu_manager_options=bounded(parse_options(attributes.get("cpuManagerPolicyOptions", ""))),
        topology_manager_options=bounded(parse_options(attributes.get("topologyManagerPolicyOptions", ""))),
        memory_manager_policy=attributes.get("memoryManagerPolicy"),
        sockets=_groups(root, attributes, "hetsched.io/sockets"),
        caches=_groups(root, attributes, "hetsched.io/caches"),
        grants=_grants(root, attributes.get(_GRANTS)),
    )


def _grants(root: FieldView, text: str | None) -> tuple[KubeletGrant, ...]:
    """Read the kubelet's grants to pods from an export's attribute."""
    if text is None:
        return ()
    try:
        grants = msgspec.json.decode(text, type=tuple[KubeletGrant, ...])
    except (msgspec.DecodeError, RecursionError):
        root.fail("is not a list of grants", "attributes", code="GrantsMalformed")
    for grant in grants:
        _cpus(root, {_GRANTS: grant.cpus}, _GRANTS)
        if any(count < 0 for counts in grant.devices.values() for count in counts.values()):
            root.fail("counts devices below 0", "attributes", code="GrantsMalformed")
    return grants


def power(root: FieldView, problems: list[str]) -> PowerReport | None:
    """Read the power attributes of a NodeResourceTopology, None if it has none; an invalid one counts as absent."""
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


def _attributes(view: FieldView) -> dict[str, str]:
    """Read attributes, a list of name and value or (crane) a mapping."""
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
        view.fail("is required", "name")
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
    )


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
    """Read the capacity of a zone for offline work, None if not stated; an unreadable value is 0 (zone not usable)."""
    text = attributes.get("offline_capacity")
    if text is None:
        return None
    try:
        return parse_amount(CPU, text)
    except InputError as error:
        problems.append(zone_problem(zone, error.message))
        return 0
