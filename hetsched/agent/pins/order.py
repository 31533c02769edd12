"""In which order containers are given their CPUs.

Problem: between two writes the old and the new sets stand beside each other, and a crash may make that last.
Rule: the next write is the first that there is of
    1. a container that shares its CPUs leaves those that it may not have any more;
    2. a container with CPUs of its own gets them, if they are within what it has or no other pod is on them;
    3. nobody can be given its own, because they stand on one another's: one of them steps into what it may keep, or
       aside into the shared CPUs;
    4. a container that shares has nowhere to go but to CPUs that another still has to leave;
    5. a container that shares gets more, if they are nobody's own.
So what becomes exclusive is left by all others before, and taken by others only after its holder left. A container that
cannot be changed is left out: nobody waits for it, unless it holds CPUs of its own.
Sets of CPUs are bit masks here.
Invariant: no write but the fourth puts a pod on CPUs that are another's own, or that it holds still; it is needed only
where every CPU is somebody's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec


class Target(msgspec.Struct, frozen=True):
    """Which CPUs a container is to have; `own`: those of its pod alone. `pod` tells whom it may overlap."""

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
    """Return the container to write next and its CPUs, None where everything is in place or cannot be.

    `shared` are the CPUs that are nobody's own; `stuck` containers could not be changed, those in `aside` stepped aside
    already.
    """
    off = [one for one, target in targets.items() if current[one] != target.cpus and one not in stuck]
    sharing = [one for one in off if not targets[one].own]
    owning = [one for one in off if targets[one].own]
    leaving = [one for one in sharing if current[one] & ~targets[one].cpus]
    for one in leaving:
        if cpus := current[one] & targets[one].cpus or targets[one].cpus & ~_taken(one, current, targets):
            return one, cpus
    for one in owning:
        if not targets[one].cpus & ~current[one] or not _in_the_way(one, current, targets, stuck):
            return one, targets[one].cpus
    for one in owning:
        if (cpus := current[one] & targets[one].cpus) and cpus != current[one]:
            return one, cpus
    for one in owning:
        cpus = shared & ~_taken(one, current, targets)
        if cpus and one not in aside and cpus != current[one]:
            return one, cpus
    for one in leaving:
        if cpus := targets[one].cpus:
            return one, cpus
    for one in sharing:
        cpus = targets[one].cpus & ~_taken(one, current, targets)
        if cpus and cpus != current[one]:
            return one, cpus
    return None


def _taken(one: str, current: Mapping[str, int], targets: Mapping[str, Target]) -> int:
    """Return the CPUs that are another pod's own, or held by one that is to have CPUs of its own."""
    taken = 0
    for other, target in targets.items():
        if target.own and target.pod != targets[one].pod:
            taken |= target.cpus | current[other]
    return taken


def _in_the_way(one: str, current: Mapping[str, int], targets: Mapping[str, Target], stuck: Collection[str]) -> bool:
    """Tell whether another pod is on what is to be one's own."""
    return any(
        current[other] & targets[one].cpus and target.pod != targets[one].pod and (target.own or other not in stuck)
        for other, target in targets.items()
    )
