"""Files on disk, by what they hold: Kubernetes YAML or JSON, or lists of the openb trace.

Rule: the content decides, not the file's name. Several files are one bag of objects, so a pod in one may name a class
in another, and an object may stand in one of them only. Node lists belong to a cluster, pod lists to a workload.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from hetsched.contracts.cluster import ClusterContent
from hetsched.contracts.errors import InputError

from . import openb
from .documents import MAX_BYTES, Document, load_documents
from .manifests import read_content

Source = tuple[str, bytes]


def read_cluster(*paths: str | Path) -> ClusterContent:
    """Read cluster files.

    Raises: InputError naming the file.
    """
    return parse_cluster([_load(path) for path in paths])


def read_workload(*paths: str | Path, known: ClusterContent | None = None) -> ClusterContent:
    """Read workload files; pods may name classes and groups of the cluster `known`.

    Raises: InputError naming the file.
    """
    return parse_workload([_load(path) for path in paths], known=known)


def parse_cluster(sources: Sequence[Source]) -> ClusterContent:
    """Read a cluster from (name, bytes) pairs.

    Raises: InputError.
    """
    return _parse(sources, workload=False, known=None)


def parse_workload(
    sources: Sequence[Source], *, known: ClusterContent | None = None, names: str = ""
) -> ClusterContent:
    """Read a workload from (name, bytes) pairs; generated names are made of `names`, or numbers without it.

    Raises: InputError.
    """
    return _parse(sources, workload=True, known=known, names=names)


def _load(path: str | Path) -> Source:
    try:
        with Path(path).open("rb") as file:
            # One byte more than is allowed is enough to refuse the file.
            return str(path), file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError("FileUnreadable", f"it cannot be read: {reason}", place=str(path)) from None


def _parse(
    sources: Sequence[Source], *, workload: bool, known: ClusterContent | None, names: str = ""
) -> ClusterContent:
    documents: list[Document] = []
    lists: list[ClusterContent] = []
    for name, data in sources:
        kind = openb.looks_like_openb(data)
        if kind is None:
            documents.extend(load_documents(data, name=name))
        elif len(data) > MAX_BYTES:
            raise InputError("ManifestTooLarge", f"it has more than {MAX_BYTES} bytes", place=name)
        elif (kind == "pods") != workload:
            wanted = "pod list" if workload else "node list"
            raise InputError("WrongFile", f"it is an openb list of {kind}", place=name, hint=f"Give a {wanted} here")
        else:
            lists.append((openb.read_pods if workload else openb.read_nodes)(data, name))
    objects = read_content(documents, workload=workload, known=known, names=names)
    if not lists:
        return objects
    content = msgspec.structs.replace(
        objects,
        nodes=objects.nodes + tuple(node for part in lists for node in part.nodes),
        pending=objects.pending + tuple(pod for part in lists for pod in part.pending),
    )
    _refuse_repeated("nodes", (node.name for node in content.nodes))
    _refuse_repeated("pods", (pod.key for pod in content.running + content.pending))
    return content


def _refuse_repeated(what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError("ObjectDuplicate", f"two {what} are called {name}")
        seen.add(name)
