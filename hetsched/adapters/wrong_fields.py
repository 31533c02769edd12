"""All wrong fields of a manifest, for an error that lists them together.

The readers of objects stop at the first wrong field. To find the next one, its value is replaced in a copy by one that
the readers accept, and the manifest is read again. The search ends if a field has no such value, for example because
the error is about two fields or a whole object. Controllers are read with one pod each, because all pods of a template
have the same wrong fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import msgspec

from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.workload import PodSpec

from .objects.documents import Document, count_values

MOST_FURTHER = 19  # errors after the first one
MOST_VALUES = 5_000  # values of a manifest, because each wrong field costs up to three reads
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d{1,6})\]|\['([^']*)'\]")
_PODS_OF_CONTROLLERS = ("replicas", "parallelism", "completions")

Read = Callable[[Sequence[Document]], Sequence[PodSpec]]


def further_errors(error: InputError, documents: Sequence[Document], read: Read) -> tuple[InputError, ...]:
    """Return the errors after `error`, the first one; `read` returns the pods of documents or raises InputError."""
    if sum(count_values(document.object, MOST_VALUES) for document in documents) > MOST_VALUES:
        return ()
    copies = [msgspec.structs.replace(document, object=_with_one_pod(document.object)) for document in documents]
    found: list[InputError] = []
    replaced: set[str | int] = set()
    current: InputError | None = error
    while current is not None and len(found) < MOST_FURTHER:
        field = _field(current.place, copies)
        if field is None:
            return tuple(found)
        owner, key = field
        if isinstance(owner[key], dict | list):
            return tuple(found)  # without the object, the readers would miss its fields
        replaced.add(key)
        for value in (None, f"x{len(found)}", 1):
            owner[key] = value
            following, pods = _outcome(read, copies)
            if following is None or following.place != current.place:
                break
        else:
            return tuple(found)
        if following is None:
            return (*found, *_errors_of_pods(pods, copies, replaced))[:MOST_FURTHER]
        found.append(following)
        current = following
    return tuple(found)


def _with_one_pod(value: Any) -> Any:
    """Return a copy of a manifest in which each controller has one pod."""
    if isinstance(value, dict):
        return {
            key: 1 if key in _PODS_OF_CONTROLLERS and isinstance(item, int) and item > 1 else _with_one_pod(item)
            for key, item in value.items()
        }
    return [_with_one_pod(item) for item in value] if isinstance(value, list) else value


def _outcome(read: Read, documents: Sequence[Document]) -> tuple[InputError | None, Sequence[PodSpec]]:
    try:
        return None, read(documents)
    except InputError as error:
        return error, ()


def _errors_of_pods(
    pods: Sequence[PodSpec], documents: Sequence[Document], replaced: Collection[str | int]
) -> Iterator[InputError]:
    """Yield the problems of labels and annotations with the only document or else the pod; those of equal pods once.

    Problems that follow from replaced values are left out: of replaced annotations, and of objects with other names.
    """
    seen = set()
    for pod in pods:
        for problem in pod.problems:
            if problem.field in replaced or ("name" in replaced and problem.code.endswith("Unknown")):
                continue
            if (problem.field, problem.message) not in seen:
                seen.add((problem.field, problem.message))
                error = InputError(problem.code, problem.message, place=problem.field)
                yield documents[0].locate(error) if len(documents) == 1 else error.at(f"{pod.key} ")


def _field(place: str, documents: Sequence[Document]) -> tuple[Any, str | int] | None:
    """Return the mapping or list that contains the field at a place, and its key; None if the place has no field."""
    for document in documents:
        start = document.locate(InputError("", "", place=".")).place.removesuffix(".")
        if place.startswith(start):
            return _entry(document.object, place.removeprefix(start))
    return None


def _entry(value: Any, path: str) -> tuple[Any, str | int] | None:
    steps = list(_STEP.finditer(path))
    keys: list[str | int] = [int(step[2]) if step[2] else step[3] or step[1] for step in steps]
    if not keys or "".join(step[0] for step in steps) != path:
        return None
    for key in keys[:-1]:
        if not _holds(value, key):
            return None
        value = value[key]
    return (value, keys[-1]) if _holds(value, keys[-1]) else None


def _holds(value: Any, key: str | int) -> bool:
    if isinstance(key, int):
        return isinstance(value, list) and key < len(value)
    return isinstance(value, dict) and key in value
