"""Reader of Kubernetes YAML or JSON files and of the openb trace's node and pod lists.

The format is detected from a file's content, not from its name. Several files form one set of objects: a pod in one
file may refer to a class in another file, and each object may occur only once in the set. Node lists belong to a
cluster, pod lists to a workload.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.contracts.objects.cluster import ClusterContent

from .objects.documents import MAX_BYTES, Document, load_documents
from .objects.manifests import read_content
from .plain_values import SPLIT
from .traces import openb

Source = tuple[str, bytes]


def parse_cluster(sources: Sequence[Source]) -> ClusterContent:
    """Read a cluster from (name, bytes) pairs.

    Raises: InputError naming the file.
    """
    return _parse(sources, workload=False, known=None)


def parse_workload(
    sources: Sequence[Source], *, known: ClusterContent | None = None, names: str = ""
) -> ClusterContent:
    """Read a workload from (name, bytes) pairs; pods may refer to classes and groups of the cluster `known`.

    `names` is the seed of the suffixes for `generateName`; if it is empty, the suffixes are numbers.

    Raises: InputError naming the file.
    """
    return _parse(sources, workload=True, known=known, names=names)


def _parse(
    sources: Sequence[Source], *, workload: bool, known: ClusterContent | None, names: str = ""
) -> ClusterContent:
    documents, lists = load_sources(sources, workload=workload)
    return convert(documents, lists, workload=workload, known=known, names=names)


def load_sources(sources: Sequence[Source], *, workload: bool) -> tuple[list[Document], list[ClusterContent]]:
    """Return the Kubernetes objects and the contents of the openb lists of (name, bytes) pairs. Raises: InputError."""
    documents: list[Document] = []
    lists: list[ClusterContent] = []
    for name, data in sources:
        kind = openb.looks_like_openb(data)
        if kind is None:
            documents.extend(load_documents(data, name=name))
        elif len(data) > MAX_BYTES:
            raise InputError("ManifestTooLarge", f"the file is larger than {MAX_BYTES} bytes", place=name, hint=SPLIT)
        elif (kind == "pods") != workload:
            wanted = "pod list" if workload else "node list"
            raise InputError("WrongFile", f"the file is an openb list of {kind}", place=name, hint=f"Use a {wanted}")
        else:
            lists.append((openb.read_pods if workload else openb.read_nodes)(data, name))
    return documents, lists


def convert(
    documents: Sequence[Document],
    lists: Sequence[ClusterContent],
    *,
    workload: bool,
    known: ClusterContent | None = None,
    names: str = "",
) -> ClusterContent:
    """Convert the results of `load_sources` to one content. Raises: InputError."""
    objects = read_content(documents, workload=workload, known=known, names=names)
    if not lists:
        return objects
    content = msgspec.structs.replace(
        objects,
        nodes=objects.nodes + tuple(node for part in lists for node in part.nodes),
        pending=objects.pending + tuple(pod for part in lists for pod in part.pending),
    )
    _refuse_repeated("Node", (node.name for node in content.nodes))
    _refuse_repeated("Pod", (pod.key for pod in content.running + content.pending))
    return content


def _refuse_repeated(kind: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError("ObjectDuplicate", Message("two {kind} objects are named {name}", kind=kind, name=name))
        seen.add(name)
