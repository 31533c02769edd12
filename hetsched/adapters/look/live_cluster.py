"""Content of a live cluster, from paginated lists, for a report.

The informer store converts the objects, so the result equals that of an informer after its first sync. A kind that the
API server does not serve is skipped. A kind that the user may not list is not checked. Nodes and pods are required.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from hetsched.adapters.kubernetes.api import Api, ApiFailure, Resource
from hetsched.adapters.kubernetes.informer_store import InformerStore
from hetsched.adapters.kubernetes.reflector import Deleted, Upserted, object_key
from hetsched.adapters.kubernetes.resources import NODES, OPTIONAL, PODS, REQUIRED
from hetsched.contracts.api.cluster_report import ClusterObservation, UncheckedPart
from hetsched.contracts.message import Message
from hetsched.contracts.objects.cluster import ClusterContent

KINDS = len(REQUIRED) + len(OPTIONAL)
_NEEDED = (NODES, PODS)
_EXPIRED = 410
_NOT_SERVED = 404
_FORBIDDEN = 403


def observe_cluster(api: Api, on_kind: Callable[[str], None] = lambda kind: None) -> ClusterObservation:
    """List all objects that affect scheduling; `on_kind` is called with the name of each kind before it is listed.

    Raises: ApiFailure if nodes or pods cannot be listed, or if the server does not respond.
    """
    store = InformerStore()
    unchecked = []
    for resource in (*REQUIRED, *OPTIONAL):
        if resource not in _NEEDED:
            on_kind(resource.plural)
            try:
                _feed(store, api, resource)
            except ApiFailure as failure:
                if failure.status == _FORBIDDEN:
                    reason = Message("the user may not list this kind")
                    unchecked.append(UncheckedPart(_name_of(resource), reason))
                elif failure.status != _NOT_SERVED:
                    raise
    # Definitions take effect with `take`, so that the pods that are read afterwards can refer to them.
    definitions = store.take().definitions or ClusterContent()
    policies = tuple(policy.spec for policy in store.take_policies() if policy.spec is not None)
    for resource in _NEEDED:
        on_kind(resource.plural)
        _feed(store, api, resource)
    changes = store.take()
    specs = [pod.spec for pod in changes.pods if pod.spec is not None]
    content = msgspec.structs.replace(
        definitions,
        nodes=tuple(changes.nodes),
        running=tuple(spec for spec in specs if spec.node_name),
        pending=tuple(sorted((spec for spec in specs if not spec.node_name), key=lambda pod: pod.created_at)),
        policies=policies,
    )
    rejected = tuple(pod for pod in changes.pods if pod.refusal is not None)
    unhealthy = tuple(pod for pod in changes.pods if pod.devices and not pod.ended)
    return ClusterObservation(content, rejected, tuple(store.quarantined.values()), tuple(unchecked), unhealthy)


def _feed(store: InformerStore, api: Api, resource: Resource) -> None:
    """List a kind into the store, in the newest version that the server serves.

    A list that expires between pages is restarted once; objects that were deleted in the meantime are removed.
    """
    before: set[str] = set()
    try:
        for key, body in _objects(api, resource):
            before.add(key)
            store.feed(resource, Upserted(key, body))
    except ApiFailure as failure:
        if failure.status != _EXPIRED:
            raise
        for key, body in _objects(api, resource):
            before.discard(key)
            store.feed(resource, Upserted(key, body))
        for key in sorted(before):
            store.feed(resource, Deleted(key))


def _objects(api: Api, resource: Resource) -> Iterator[tuple[str, bytes]]:
    versions = resource.in_all_versions()
    for version in versions:
        try:
            for bodies, _ in api.list_pages(version):
                for body in bodies:
                    yield object_key(body), body
        except ApiFailure as failure:
            if failure.status != _NOT_SERVED or version is versions[-1]:
                raise
        else:
            return


def _name_of(resource: Resource) -> str:
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural
