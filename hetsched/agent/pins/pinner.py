"""Keep every container of the machine on its target CPUs.

Containers, the runtime and the agent restart, and each of them loses its state. Therefore each step, independent of
earlier steps, compares the target CPUs (`wanted`) with the actual CPUs (`actual`) and changes the containers whose CPUs
differ (`order`); the next step retries failed changes. Persistent state is written before it is used, if it can be
written. No container is changed while the signing key or the kubelet's CPU policy is unknown. If the kubelet pins, no
container is changed either, and the kubelet's choices are reported together with the CPUs that hetsched predicted.
Pinned containers are checked in every step. Containers with shared CPUs are checked periodically, and immediately after
a change of the shared CPUs.
Invariant: a step without differences does not write files or change containers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from hetsched.agent.cri import CriContainer, Runtime, RuntimeFailure, Sandbox
from hetsched.agent.tree import Tree
from hetsched.contracts.cpuset import format_cpuset, parse_cpuset
from hetsched.contracts.errors import InputError
from hetsched.contracts.messages.agent_report import KubeletState, MachineProblem, PinnedContainer

from .actual import CpuReader
from .grants import ALLOCATION, Grants
from .order import Target, next_write
from .state import PinState, StateFile
from .wanted import FIXED, Cpus, MachineCpus, PinPlan, PodContainer, RuntimePod, WantedCpus, plan

LOOKED_AT_SECONDS = 10.0  # check interval of containers with shared CPUs
MOST_LATE = 1  # number of timeouts tolerated in one step; after more, the runtime is treated as hung
_NODES = "sys/devices/system/node"


class Pinner:
    """Pinner of the containers of one machine; the persistent state is stored in `folder`."""

    def __init__(
        self,
        node: str,
        runtime: Runtime,
        folder: Path,
        tree: Tree,
        *,
        kubelet: Callable[[], KubeletState | None] = lambda: None,
    ) -> None:
        self._runtime = runtime
        self._tree = tree
        self._kubelet = kubelet
        self._file = StateFile(folder)
        self._actual = CpuReader(tree, runtime)
        self._grants = Grants(node)
        self._settled: dict[str, Cpus] = {}
        self._loaded = False
        self._current: dict[str, int] = {}
        self._read_at: dict[str, float] = {}
        self._last_plan: dict[str, WantedCpus] = {}
        self._failed: dict[str, str] = {}
        self._last: tuple[PinnedContainer, ...] = ()
        self.problems: tuple[MachineProblem, ...] = ()

    def learn(self, cluster: str, key: bytes, allocations: Iterable[tuple[str, str]]) -> None:
        """Process a response of the control plane: the node's key, and for each pod UID the text of its allocation."""
        self._load()
        self._grants.learn(cluster, key)
        self._grants.answered(allocations)

    @property
    def grants(self) -> Grants:
        """The verified allocations of the node's pods, as of the last step or response."""
        self._load()
        return self._grants

    def close(self) -> None:
        self._runtime.close()
        self._file.release()

    def step(self, now: float) -> tuple[PinnedContainer, ...]:
        """Set the CPUs of every container; return the granted and the actual CPUs of pinned containers.

        `now` is in seconds of a monotonic clock. If the runtime does not respond, the containers of the last result
        are returned with unknown actual CPUs, and the missing response as the reason for the drift.
        """
        problems: list[MachineProblem] = []
        try:
            self._last = self._step(now, problems)
        except RuntimeFailure as failure:
            problems.append(MachineProblem("RuntimeAway", str(failure), str(self._runtime.socket)))
            why = "the container runtime does not respond"
            self._last = tuple(
                PinnedContainer(container.pod_uid, container.container, container.predicted, None, container.by, why)
                for container in self._last
            )
        # Reads of exited processes fail regularly, so the problems would accumulate over months.
        self._tree.problems.clear()
        found = (*problems, *self._grants.problems)
        self.problems = (self._file.problem, *found) if self._file.problem is not None else found
        return self._last

    # -- one step ------------------------------------------------------------------------------------------------------

    def _step(self, now: float, problems: list[MachineProblem]) -> tuple[PinnedContainer, ...]:
        self._load()
        sandboxes, containers = self._runtime.sandboxes(), self._runtime.containers()
        self._read_allocations(sandboxes)
        kubelet = self._kubelet()
        if kubelet is not None and (kubelet.cpu_manager_policy == "static" or kubelet.exclusive):
            self._save(problems)
            return self._by_kubelet(kubelet)
        if self._grants.key is None:
            problems.append(MachineProblem("KeyUnknown", "no container is pinned until the control plane responds"))
            return ()
        if kubelet is not None and kubelet.cpu_manager_policy is None:
            problems.append(
                MachineProblem("KubeletUnknown", "no container is pinned: the kubelet's CPU policy is unknown")
            )
            return ()
        if not self._is_only_agent():
            problems.append(MachineProblem("AnotherAgent", "another agent on this machine pins the containers"))
            return ()
        machine = self._machine(kubelet)
        if not machine.online:
            problems.append(MachineProblem("CpusUnknown", "no container is pinned: the online CPUs are unknown"))
            return ()
        pods, members = self._pods(sandboxes, containers)
        self._settled = {
            container.id: self._settled[container.id] for container in members if container.id in self._settled
        }
        wanted = plan(machine, pods, members, self._settled)
        self._read_actual_cpus(now, wanted, members, machine)
        self._settle(wanted, pods, members)
        self._save(problems)
        if not wanted.shared and any(not container.cpus for container in wanted.containers.values()):
            why = "all CPUs are exclusive, so other containers keep their CPUs"
            problems.append(MachineProblem("NothingShared", why))
        self._write(wanted, members)
        problems += [
            MachineProblem("NotPinned", why, container_id) for container_id, why in sorted(self._failed.items())
        ]
        return self._report(wanted, members)

    def _read_allocations(self, sandboxes: tuple[Sandbox, ...]) -> None:
        """Process the annotations of pods; if a pod has several sandboxes, the newest is used."""
        for sandbox in sorted(sandboxes, key=lambda sandbox: sandbox.created_at):
            if sandbox.ready and (text := sandbox.annotations.get(ALLOCATION)):
                self._grants.process_annotation(sandbox.uid, text)
        self._grants.forget({sandbox.uid for sandbox in sandboxes})

    def _pods(
        self, sandboxes: tuple[Sandbox, ...], containers: tuple[CriContainer, ...]
    ) -> tuple[list[RuntimePod], list[PodContainer]]:
        uids = {sandbox.id: sandbox.uid for sandbox in sandboxes}
        members = [
            PodContainer(container.id, uids[container.sandbox_id], container.name)
            for container in containers
            if container.sandbox_id in uids
        ]
        alive = {member.pod for member in members}
        created: dict[str, int] = {}
        for sandbox in sandboxes:
            if sandbox.ready or sandbox.uid in alive:
                created[sandbox.uid] = min(sandbox.created_at, created.get(sandbox.uid, sandbox.created_at))
        return [RuntimePod(uid, since, self._grants.of(uid)) for uid, since in sorted(created.items())], members

    def _read_actual_cpus(self, now: float, wanted: PinPlan, members: list[PodContainer], machine: MachineCpus) -> None:
        """Read the actual CPUs of all pinned containers and of those whose periodic check is due."""
        present = {member.id for member in members}
        self._actual.forget(present)
        self._current = {key: cpus for key, cpus in self._current.items() if key in present}
        self._read_at = {key: read_at for key, read_at in self._read_at.items() if key in self._current}
        late = 0
        for member in members:
            target_cpus = wanted.containers[member.id]
            due = now - self._read_at.get(member.id, -LOOKED_AT_SECONDS) >= LOOKED_AT_SECONDS
            if target_cpus.predicted is None and not due and self._last_plan.get(member.id) == target_cpus:
                continue
            self._read_at[member.id] = now
            try:
                found = self._actual.cpus(member.id)
            except RuntimeFailure as failure:
                late += failure.late
                if failure.away or late > MOST_LATE:
                    raise
                found = None
            # A container whose CPUs are unknown is treated as running on every CPU.
            self._current[member.id] = _mask(machine.online if not found else found & machine.online or machine.online)
        self._last_plan = wanted.containers

    def _settle(self, wanted: PinPlan, pods: list[RuntimePod], members: list[PodContainer]) -> None:
        """Record the final CPUs of immovable containers that have these CPUs already or get them in this step."""
        fixed = {pod.uid for pod in pods if pod.granted is not None and pod.granted.policy == FIXED}
        for member in members:
            target_cpus = wanted.containers[member.id]
            if member.pod in fixed and target_cpus.predicted is not None and not target_cpus.why:
                self._settled.setdefault(member.id, target_cpus.cpus)

    def _write(self, wanted: PinPlan, members: list[PodContainer]) -> None:
        """Write the target CPUs of containers whose CPUs differ; containers whose last write failed come last."""
        targets = {
            member.id: Target(_mask(target_cpus.cpus), member.pod, target_cpus.own)
            for member in members
            if (target_cpus := wanted.containers[member.id]).cpus
        }
        current = {target: self._current[target] for target in targets}
        before, self._failed = self._failed, {}
        ended, aside, late = set[str](), set[str](), 0
        for left_out in (before.keys(), frozenset[str]()):
            for _ in range(4 * len(targets) + 4):
                write = next_write(current, targets, _mask(wanted.shared), {*self._failed, *ended, *left_out}, aside)
                if write is None:
                    break
                container_id, cpus = write
                if cpus != targets[container_id].cpus:
                    aside.add(container_id)
                try:
                    self._runtime.set_cpus(container_id, format_cpuset(_cpus(cpus)))
                    found = self._actual.cpus(container_id)
                except RuntimeFailure as failure:
                    late += failure.late
                    if failure.away or late > MOST_LATE:
                        raise
                    if failure.gone:
                        ended.add(container_id)
                        current[container_id] = 0
                    else:
                        self._failed[container_id] = (
                            f"the runtime rejected CPUs {format_cpuset(_cpus(cpus))}: {failure}"
                        )
                    continue
                current[container_id] = self._current[container_id] = _mask(found) if found else cpus
                if current[container_id] != cpus:
                    self._failed[container_id] = (
                        f"the container was pinned to CPUs {format_cpuset(_cpus(cpus))} but runs on other CPUs"
                    )

    def _report(self, wanted: PinPlan, members: list[PodContainer]) -> tuple[PinnedContainer, ...]:
        found = []
        for member in sorted(members, key=lambda member: (member.pod, member.name, member.id)):
            target_cpus = wanted.containers[member.id]
            if target_cpus.predicted is None:
                continue
            has, predicted = format_cpuset(_cpus(self._current[member.id])), format_cpuset(target_cpus.predicted)
            drift = target_cpus.why or self._failed.get(member.id, "")
            if not drift and has != predicted:
                drift = f"the container runs on CPUs {has}"
            found.append(PinnedContainer(member.pod, member.name, predicted, has, "agent", drift))
        return tuple(found)

    def _by_kubelet(self, kubelet: KubeletState) -> tuple[PinnedContainer, ...]:
        """Return the kubelet's assignments, each with the CPUs that hetsched predicted for the whole pod."""
        found = []
        for uid, containers in sorted(kubelet.exclusive.items()):
            granted = self._grants.of(uid)
            zones = granted.predicted or granted.zones if granted is not None else ()
            predicted = format_cpuset(_parsed(",".join(zone.cpus for zone in zones if zone.cpus)))
            has = format_cpuset(cpu for cpus in containers.values() for cpu in _parsed(cpus))
            drift = f"the kubelet assigned CPUs {has} to the pod" if predicted and predicted != has else ""
            found += [
                PinnedContainer(uid, name, predicted, cpus, "kubelet", drift)
                for name, cpus in sorted(containers.items())
            ]
        return tuple(found)

    # -- state ---------------------------------------------------------------------------------------------------------

    def _machine(self, kubelet: KubeletState | None) -> MachineCpus:
        online = _parsed(self._tree.text("sys/devices/system/cpu/online") or "")
        options: Mapping[str, str] = kubelet.cpu_manager_options if kubelet is not None else {}
        strict = kubelet is not None and options.get("strict-cpu-reservation", "").lower() == "true"
        withheld = _parsed(kubelet.reserved_cpus or "") if kubelet is not None and strict else frozenset()
        zones = {
            int(name[4:]): _parsed(self._tree.text(f"{_NODES}/{name}/cpulist") or "")
            for name in self._tree.names(_NODES)
            if name.startswith("node") and name[4:].isdecimal()
        }
        return MachineCpus(online, withheld, zones)

    def _load(self) -> None:
        if self._loaded:
            return
        state = self._file.load(self._grants.node)
        if state.key is not None:
            self._grants.learn(state.cluster, state.key)
        self._grants.known.update(state.known)
        self._settled = {container_id: _parsed(cpus) for container_id, cpus in state.settled.items()}
        self._loaded = True

    def _is_only_agent(self) -> bool:
        try:
            return self._file.locked()
        except OSError:
            return True  # the error is reported when the file is written, which also fails

    def _save(self, problems: list[MachineProblem]) -> None:
        """Write the persistent state; a failure is reported and pinning continues."""
        settled = {container_id: format_cpuset(cpus) for container_id, cpus in self._settled.items()}
        grants = self._grants
        try:
            if self._file.locked():
                self._file.save(PinState(grants.node, grants.cluster, grants.key, grants.known, settled))
        except OSError as error:
            problems.append(
                MachineProblem(
                    "PinsNotKept",
                    f"the state file cannot be written, so pins are lost at a restart of the agent: {error}",
                )
            )


def _parsed(text: str) -> Cpus:
    try:
        return parse_cpuset(text)
    except InputError:
        return frozenset()


@lru_cache(maxsize=512)
def _mask(cpus: Cpus) -> int:
    return sum(1 << cpu for cpu in cpus)


def _cpus(mask: int) -> Cpus:
    return frozenset(cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1)
