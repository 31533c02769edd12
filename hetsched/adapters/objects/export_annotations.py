"""What an export keeps of a pod in annotations, since the one container of an export cannot say it, read back.

Raises everywhere: InputError for what no export has written.
"""

from __future__ import annotations

import msgspec

from hetsched.contracts.errors import Problem
from hetsched.contracts.units import MEMORY
from hetsched.contracts.workload import ContainerDemand, Shape

from . import keys
from .fields import View


def with_problems(problems: list[Problem], annotations: dict[str, str]) -> tuple[Problem, ...]:
    """Put the problems that an export kept before those found here, one per field."""
    if keys.EXPORT_PROBLEMS not in annotations:
        return tuple(problems)
    try:
        kept = msgspec.json.decode(annotations[keys.EXPORT_PROBLEMS], type=list[Problem])
    except (msgspec.DecodeError, RecursionError) as error:
        kept = [Problem("ExportMalformed", keys.EXPORT_PROBLEMS, f"it is not a list of problems: {error}")]
    fields = {problem.field for problem in kept}
    return (*kept, *(problem for problem in problems if problem.field not in fields))


def with_scoring(shape: Shape, annotations: View) -> Shape:
    """Put what scoring counts of the pod that was exported in place of what was read."""
    text = annotations.text(keys.EXPORT_SCORING)
    try:
        cpu, memory = msgspec.json.decode(text, type=tuple[int, int])
    except (msgspec.DecodeError, RecursionError) as error:
        annotations.fail(f"it is not [millicores, bytes]: {error}", keys.EXPORT_SCORING)
    if not (0 <= cpu < 2**53 and 0 <= memory < 2**53):
        annotations.fail(f"it is out of range for cpu or {MEMORY}", keys.EXPORT_SCORING)
    return msgspec.structs.replace(shape, nonzero_cpu_millis=cpu, nonzero_memory_bytes=memory)


class ExportedContainers(msgspec.Struct):
    """What a shape says of its containers, where the one container of an export cannot say it."""

    guaranteed: bool
    containers: tuple[ContainerDemand, ...]
    names: tuple[str, ...] = ()


def with_containers(shape: Shape, annotations: View) -> tuple[Shape, tuple[str, ...]]:
    """Put the containers of the pod that was exported in place of its one; return their names beside."""
    try:
        kept = msgspec.json.decode(annotations.text(keys.EXPORT_CONTAINERS), type=ExportedContainers)
    except (msgspec.DecodeError, RecursionError) as error:
        annotations.fail(f"it does not describe containers: {error}", keys.EXPORT_CONTAINERS)
    for container in kept.containers:
        if not all(0 <= amount < 2**53 for amount in (container.cpus, container.memory_bytes, container.cards)):
            annotations.fail("it is out of range", keys.EXPORT_CONTAINERS)
    return msgspec.structs.replace(shape, containers=kept.containers, guaranteed=kept.guaranteed), kept.names
