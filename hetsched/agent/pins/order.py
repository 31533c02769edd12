"""Order of the CPU changes of containers.

Between two writes, some containers have their old CPUs and others have their new CPUs; after a crash this state may
persist. The next write is the first of these that applies:

    1. a container with shared CPUs is removed from CPUs that are not in its target;
    2. a container gets its exclusive CPUs, if they are within its current set or no other pod runs on them;
    3. a container with exclusive CPUs that are still in use shrinks to the CPUs that it may keep, or moves aside to
       the shared CPUs, so that containers do not block one another;
    4. a container with shared CPUs moves to CPUs that another container still has to leave, if there are no others;
    5. a container with shared CPUs gets more CPUs, if they are not exclusive to another pod.

As a result, other containers are removed from CPUs before the CPUs become exclusive, and get CPUs only after the
container that used them exclusively has left. A container that cannot be changed is skipped; other containers do not
wait for it, unless it has exclusive CPUs. Sets of CPUs are bit masks.
Invariant: only a write of rule 4 can put a pod on CPUs that another pod uses, or still used, exclusively; it is needed
only if every CPU is exclusive.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec


class Target(msgspec.Struct, frozen=True):
    """Target CPUs of a container; `own` marks them as exclusive to `pod`, whose other containers may use them too."""

    cpus: int
    pod: str
    own: bool = False


def next_write(
    current: Mapping[str, int],
    targets: Mapping[str, Target],
    shared: int,
    stuck: Collection[str] = (),
    aside: Collection[str] = (),
) -> tuple[str, int] | None:
    """Return the container to write next and its CPUs, or None if no write is necessary or possible.

    `shared` is the bit mask of the CPUs that are not exclusive to a pod. `stuck` contains the containers whose last
    write failed. `aside` contains the containers that were already moved to shared CPUs to unblock others.
    """
    off = [one for one, target in targets.items() if current[one] != target.cpus and one not in stuck]
    sharing = [one for one in off if not targets[one].own]
    owning = [one for one in off if targets[one].own]
    leaving = [one for one in sharing if current[one] & ~targets[one].cpus]
    for one in leaving:
        if cpus := current[one] & targets[one].cpus or targets[one].cpus & ~_unavailable_cpus(one, current, targets):
            return one, cpus
    for one in owning:
        if not targets[one].cpus & ~current[one] or not _is_blocked(one, current, targets, stuck):
            return one, targets[one].cpus
    for one in owning:
        if (cpus := current[one] & targets[one].cpus) and cpus != current[one]:
            return one, cpus
    for one in owning:
        cpus = shared & ~_unavailable_cpus(one, current, targets)
        if cpus and one not in aside and cpus != current[one]:
            return one, cpus
    for one in leaving:
        if cpus := targets[one].cpus:
            return one, cpus
    for one in sharing:
        cpus = targets[one].cpus & ~_unavailable_cpus(one, current, targets)
        if cpus and cpus != current[one]:
            return one, cpus
    return None


def _unavailable_cpus(one: str, current: Mapping[str, int], targets: Mapping[str, Target]) -> int:
    """Return the current and the target CPUs of the containers of other pods that get exclusive CPUs."""
    taken = 0
    for other, target in targets.items():
        if target.own and target.pod != targets[one].pod:
            taken |= target.cpus | current[other]
    return taken


def _is_blocked(one: str, current: Mapping[str, int], targets: Mapping[str, Target], stuck: Collection[str]) -> bool:
    """Return whether another pod still runs on the target CPUs of a container."""
    return any(
        current[other] & targets[one].cpus and target.pod != targets[one].pod and (target.own or other not in stuck)
        for other, target in targets.items()
    )
