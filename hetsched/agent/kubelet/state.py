"""State of the machine's kubelet: CPU, memory and topology policies, and exclusive CPUs.

If the kubelet pins containers, no other process may pin them. The agent must therefore know the kubelet's policies,
reserved CPUs and assignments. It reads them from the kubelet's files, whose format changed several times.
`cpu_manager_state` contains the effective CPU policy and overrides the configuration. If the configuration could be
read, settings that no file contains have the kubelet's default. Reserved CPUs are those that the configuration lists.
If it reserves only an amount and the policy is static, the reserved CPUs are computed with the kubelet's algorithm. A
wrong checksum is reported and has no other effect; the kubelet itself would not start with such a file. The checksum is
FNV-1a with 32 bits over Go's dump of the object, with checksum 0 and the type name without version.
Source: kubernetes pkg/kubelet/cm/{cpumanager,memorymanager}/state, pkg/kubelet/checkpointmanager (1.36).
Invariant: nothing is written; exclusive and shared CPUs that overlap, or that the machine does not have, are reported.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from hetsched.contracts.cpuset import format_cpuset, parse_cpuset
from hetsched.contracts.errors import InputError
from hetsched.contracts.messages.agent_report import KubeletState, MachineCpu, MachineProblem
from hetsched.contracts.objects.kubelet_options import bounded, read_options, unknown_options
from hetsched.contracts.reserved_cpus import reserved_by_amount
from hetsched.contracts.units import CPU, parse_amount

from ..probe_topology import probe_topology, topology_fingerprint
from ..tree import Tree
from .config import FOLDER, KubeletConfig, read_config
from .memory_state import MemoryManagerState, parse_memory_state

MOST_BYTES = 512 * 1024  # ten times the size for 1000 pods
_DEFAULTS = {
    "cpuManagerPolicy": "none", "topologyManagerPolicy": "none", "topologyManagerScope": "container",
    "memoryManagerPolicy": "None",
}  # fmt: skip
_FILES = ("config.yaml", "kubeadm-flags.env", "cpu_manager_state", "memory_manager_state")

Entries = dict[str, dict[str, str]]


class CpuManagerState(NamedTuple):
    """Checkpoint of the CPU manager; `by_container` marks the oldest format, whose keys are container IDs."""

    policy: str
    shared: str
    exclusive: Entries
    by_container: bool = False


def probe_kubelet(tree: Tree, cpus: Iterable[MachineCpu] | None = None) -> KubeletState | None:
    """Return the kubelet's state, or None if there is no kubelet; `cpus` is used to compute the reserved CPUs."""
    config = read_config(tree)
    state = _cpu_manager_state(tree, f"{FOLDER}/cpu_manager_state")
    memory = _memory_manager_state(tree, f"{FOLDER}/memory_manager_state")
    sources = [
        name
        for name, found in (("config", config), ("cpu_manager_state", state), ("memory_manager_state", memory))
        if found is not None
    ]
    if not sources:
        if not tree.exists(FOLDER):
            tree.problems.append(MachineProblem("NoKubelet", f"{FOLDER}: the kubelet folder does not exist", FOLDER))
            return None
        what = f"{FOLDER}: the kubelet's configuration and state cannot be read"
        tree.problems.append(MachineProblem("KubeletUnknown", what, FOLDER))
    stated = _configured_state(config)
    policy = stated.get("cpuManagerPolicy")
    if state is not None and policy not in (None, state.policy):
        what = f"{FOLDER}: the configured CPU policy is {policy!r}, the running CPU policy is {state.policy!r}"
        tree.problems.append(MachineProblem("KubeletContradicts", what, FOLDER))
    listed = tuple(cpus or ())
    found = KubeletState(
        cpu_manager_policy=state.policy if state is not None else policy,
        cpu_manager_options=bounded(config.maps.get("cpuManagerPolicyOptions", {})) if config else {},
        topology_manager_options=bounded(config.maps.get("topologyManagerPolicyOptions", {})) if config else {},
        topology_manager_policy=stated.get("topologyManagerPolicy"),
        topology_manager_scope=stated.get("topologyManagerScope"),
        memory_manager_policy=memory.policy if memory is not None else stated.get("memoryManagerPolicy"),
        memory=memory.assignable if memory is not None else None,
        memory_blocks=memory.blocks if memory is not None else {},
        shared_cpus=state.shared if state is not None and state.policy == "static" else None,
        exclusive=state.exclusive if state is not None else {},
        sources=tuple(sources),
    )
    consistent = _report_overlaps(tree, found, listed)
    found = _with_reserved(tree, found, config, listed)
    _check_assignment(tree, found, listed, consistent=consistent)
    for option in unknown_options(found.cpu_manager_options, found.topology_manager_options):
        what = f"{FOLDER}: the prediction of the kubelet's verdict does not model {option}"
        tree.problems.append(MachineProblem("KubeletOptionUnknown", what, FOLDER))
    return found


class KubeletWatch:
    """Cached state of the kubelet; it is read again only after one of its files, or the CPUs, changed."""

    def __init__(self, tree: Callable[[], Tree]) -> None:
        self._tree = tree
        self._seen = ("", "")
        self._state: KubeletState | None = None

    def now(self) -> KubeletState | None:
        tree = self._tree()
        seen = kubelet_fingerprint(tree), topology_fingerprint(tree)
        if seen != self._seen:
            self._seen, self._state = seen, probe_kubelet(tree, probe_topology(tree)[1])
        return self._state


def kubelet_fingerprint(tree: Tree) -> str:
    """Return a text that changes when a file of the kubelet changes; the function reads four files."""
    digest = hashlib.sha256()
    for name in _FILES:
        digest.update(hashlib.sha256(tree.data(f"{FOLDER}/{name}", MOST_BYTES) or b"").digest())
    return digest.hexdigest()


# -- parsing of the files
# -------------------------------------------------------------------------------------------------


def _configured_state(config: KubeletConfig | None) -> dict[str, str]:
    if config is None:
        return {}
    defaults = {key: value for key, value in _DEFAULTS.items() if key not in config.unknown}
    return defaults | config.scalars


def _with_reserved(
    tree: Tree, found: KubeletState, config: KubeletConfig | None, cpus: tuple[MachineCpu, ...]
) -> KubeletState:
    """Add the reserved CPUs.

    These are the CPUs that the configuration lists. If it reserves only an amount and the policy is static, they are
    computed.
    """
    if config is None:
        return found
    named = config.scalars.get("reservedSystemCPUs")
    reserved: frozenset[int] | None = None
    number: int | None = None
    try:
        if named is not None:
            reserved = parse_cpuset(named)
        elif found.cpu_manager_policy == "static" and "reservedSystemCPUs" not in config.unknown:
            amounts = [config.maps.get(key, {}).get("cpu", "0") for key in ("kubeReserved", "systemReserved")]
            millis = sum(parse_amount(CPU, amount) for amount in amounts)
            number = -(-millis // 1000)
            reserved = reserved_by_amount(cpus, number, read_options(found.cpu_manager_options, {}))
            if reserved is None:
                what = f"{FOLDER}: {millis}m CPU are reserved, but the reserved CPU ids are unknown"
                tree.problems.append(MachineProblem("ReservedCpusUnknown", what, FOLDER))
    except InputError as error:
        what = f"{FOLDER}: the reserved CPUs cannot be read: {error.message}"
        tree.problems.append(MachineProblem("ReservedCpusUnknown", what, FOLDER))
    listed = format_cpuset(reserved) if reserved else None
    return msgspec.structs.replace(found, reserved_cpus=listed, reserved_number=number)


def _cpu_manager_state(tree: Tree, path: str) -> CpuManagerState | None:
    document = _json_object(tree, path)
    if document is None:
        return None
    data = document.get("data")
    if isinstance(data, str) and data:
        _check(tree, path, document.get("datachecksum"), f"(string){data}")
        try:
            inner = _lowercase_keys(json.loads(data))
        except (ValueError, RecursionError):
            inner = None
        if inner is None:
            _unreadable(tree, path, "the value of data is not a JSON object")
            return None
        document = inner | {"checksum": 0}
    state = _as_state(tree, path, document)
    if state is not None and not document.get("podentries"):
        _check(tree, path, document.get("checksum"), *_dumps(state))
    return state


def _as_state(tree: Tree, path: str, document: dict[str, Any]) -> CpuManagerState | None:
    policy, shared = document.get("policyname"), document.get("defaultcpuset") or ""
    entries, pods = document.get("entries") or {}, document.get("podentries") or {}
    if not isinstance(policy, str) or not isinstance(shared, str) or not isinstance(entries, dict):
        _unreadable(tree, path, "the file is not a CPU manager state")
        return None
    by_container = bool(entries) and all(isinstance(held, str) for held in entries.values())
    exclusive: Entries = {}
    for uid, held in ({"": entries} if by_container else entries).items():
        if not isinstance(held, dict) or not all(isinstance(cpus, str) for cpus in held.values()):
            _unreadable(tree, path, f"the entry of {uid[:60]!r} does not contain CPU lists")
            return None
        exclusive[uid] = held
    if isinstance(pods, dict):
        for uid, whole in pods.items():
            # This entry has the CPUs of the whole pod, which include the CPUs of its containers.
            cpus = (_lowercase_keys(whole) or {}).get("cpuset")
            if isinstance(cpus, str) and cpus:
                exclusive.setdefault(uid, {}).setdefault("", cpus)
    try:
        for text in (shared, *(cpus for held in exclusive.values() for cpus in held.values())):
            parse_cpuset(text)
    except InputError as error:
        _unreadable(tree, path, error.message)
        return None
    return CpuManagerState(policy, shared, exclusive, by_container)


def _dumps(state: CpuManagerState) -> tuple[str, ...]:
    """Return Go's dump of the state in each format that the kubelet may have used."""
    head = f"(*state.CPUManagerCheckpoint){{PolicyName:(string){state.policy} DefaultCPUSet:(string){state.shared} "
    tail = " Checksum:(checksum.Checksum)0}"
    nested = _go_map({uid: _go_map(held) for uid, held in state.exclusive.items()})
    flat = _go_map(state.exclusive.get("", {}))
    second = f"Entries:(map[string]map[string]string){nested}"
    if state.by_container:
        return (f"{head}Entries:(map[string]string){flat}{tail}",)
    return (
        f"{head}{second}{tail}",
        f"{head}{second} PodEntries:(state.PodCPUAssignments)map[]{tail}",
        *((f"{head}Entries:(map[string]string)map[]{tail}",) if not state.exclusive else ()),
    )


def _go_map(values: dict[str, str]) -> str:
    return f"map[{' '.join(f'{key}:{values[key]}' for key in sorted(values))}]"


def fnv1a(text: str) -> int:
    """Return the 32-bit FNV-1a hash of a text."""
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def _check(tree: Tree, path: str, checksum: object, *dumps: str) -> None:
    """Report a checksum that does not match the dump in any format; a checksum of 0 means that none is set."""
    if not checksum or checksum in {fnv1a(text) for text in dumps}:
        return
    what = f"{path}: the checksum {str(checksum)[:40]} is wrong; the kubelet cannot start with this file"
    tree.problems.append(MachineProblem("KubeletStateCorrupt", what, path))


def _memory_manager_state(tree: Tree, path: str) -> MemoryManagerState | None:
    text = tree.text(path, MOST_BYTES)
    if text is None:
        return None
    try:
        return parse_memory_state(text)
    except ValueError as error:
        _unreadable(tree, path, f"the file is not a memory manager state: {str(error)[:200]}")
        return None


def _json_object(tree: Tree, path: str) -> dict[str, Any] | None:
    text = tree.text(path, MOST_BYTES)
    if text is None:
        return None
    try:
        document = _lowercase_keys(json.loads(text))
    except (ValueError, RecursionError):
        document = None
    if document is None:
        _unreadable(tree, path, "the file is not a JSON object")
    return document


def _lowercase_keys(document: Any) -> dict[str, Any] | None:
    """Return an object with its keys in lower case, because Go matches keys case-insensitively."""
    return {key.lower(): value for key, value in document.items()} if isinstance(document, dict) else None


def _unreadable(tree: Tree, path: str, why: str) -> None:
    tree.problems.append(MachineProblem("KubeletStateUnreadable", f"{path}: {why}", path))


def _report_overlaps(tree: Tree, found: KubeletState, cpus: tuple[MachineCpu, ...]) -> bool:
    """Report exclusive CPUs that are assigned twice, shared or offline; return true if there are none."""
    held: Counter[int] = Counter(parse_cpuset(found.shared_cpus or ""))
    for containers in found.exclusive.values():
        # The CPUs of the whole pod include those of its containers, so a set counts each CPU of the pod once.
        held.update({cpu for text in containers.values() for cpu in parse_cpuset(text)})
    twice = sorted(cpu for cpu, times in held.items() if times > 1)
    if twice:
        what = f"{FOLDER}: CPUs {format_cpuset(twice)} are assigned twice, or both exclusive and shared"
        tree.problems.append(MachineProblem("KubeletContradicts", what, FOLDER))
    online = {cpu.id for cpu in cpus if cpu.online}
    strange = held.keys() - online if online else set()
    if strange:
        what = f"{FOLDER}: the kubelet uses CPUs {format_cpuset(strange)}, which are offline"
        tree.problems.append(MachineProblem("KubeletContradicts", what, FOLDER))
    return not (twice or strange)


def _check_assignment(tree: Tree, found: KubeletState, cpus: tuple[MachineCpu, ...], *, consistent: bool) -> None:
    """Check the conditions that the kubelet checks before it starts (CPU manager `validateState`).

    Reserved CPUs must not be exclusive; they must be shared or, under `strict-cpu-reservation`, in neither set. The
    shared pool must not be empty if CPUs are exclusive. Every online CPU must be shared or exclusive; as in the
    kubelet, this is checked only if the sets are `consistent`. Reserved CPUs are not checked if their selection depends
    on the version of the kubelet, which the agent does not know.
    """
    if found.shared_cpus is None or not (found.shared_cpus or found.exclusive):
        return  # the kubelet initializes an empty state itself
    shared = parse_cpuset(found.shared_cpus)
    exclusive = frozenset[int]().union(
        *(parse_cpuset(text) for containers in found.exclusive.values() for text in containers.values())
    )
    options = read_options(found.cpu_manager_options, {})
    strict = options.strict_cpu_reservation
    remaining = frozenset(cpu.id for cpu in cpus if cpu.online) - shared - exclusive
    is_selection_known = found.reserved_number is None or not options.distribute_cpus_across_numa
    reserved = parse_cpuset(found.reserved_cpus or "") if is_selection_known else remaining
    unassigned = remaining - (reserved if strict else frozenset()) if consistent else frozenset()
    checks = (
        ("KubeletCpusUnassigned", unassigned, "are online, but neither shared nor exclusive"),
        ("KubeletReservedExclusive", reserved & exclusive, "are reserved, but exclusive to pods"),
        ("KubeletSharedEmpty", exclusive if not shared else frozenset(), "are exclusive, but the shared pool is empty"),
        ("KubeletReservedShared", reserved & shared if strict else frozenset(), "are strictly reserved, but shared"),
    )
    for code, wrong, text in checks:
        if wrong:
            what = f"{FOLDER}: CPUs {format_cpuset(wrong)} {text}; the kubelet cannot start with this file"
            tree.problems.append(MachineProblem(code, what, FOLDER))
