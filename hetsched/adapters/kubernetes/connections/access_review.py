"""RBAC rights that hetsched needs at an API server, and a check of each through a SelfSubjectAccessReview.

All rights are listed in `RIGHTS`: the connection test checks every entry, and the manifests grant exactly these rights.
Rights to submit are needed in the enrolled namespaces only. Rights on kinds that the API server does not serve are not
checked.
Source: Kubernetes documentation, "Checking API access" (SelfSubjectAccessReview).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from hetsched.contracts.documents import encode

from ..api import Api, ApiFailure, Resource
from ..leader_lease import NAME, NAMESPACE
from ..pods.pod_events import EVENTS
from ..resources import (
    CLAIMS,
    DEVICE_CLASSES,
    LEASES,
    NAMESPACES,
    NODE_GPUS,
    NODES,
    OPTIONAL,
    PODS,
    REQUIRED,
    RESOURCE_CLAIMS,
    SCHEDULING_POLICIES,
    TOPOLOGIES,
    VOLUMES,
)
from .service_account_tokens import TOKEN_REVIEWS

JOBS = Resource("batch", "v1", "jobs", "Job")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
STATEFUL_SETS = Resource("apps", "v1", "statefulsets", "StatefulSet")
REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet")
SECRETS = Resource("", "v1", "secrets", "Secret")
REVIEWS = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview")
# Kinds that a submission may create in a cluster.
SUBMITTED = (PODS, JOBS, DEPLOYMENTS, STATEFUL_SETS, REPLICA_SETS)


class Right(msgspec.Struct, frozen=True):
    """The right to use one verb on a kind, on a subresource such as `binding`, or on one named object.

    `namespace` limits the right to this namespace. `per_namespace` marks rights that are needed only in the namespaces
    that accept submissions.
    """

    purpose: str
    verb: str
    resource: Resource
    part: str = ""
    name: str = ""
    namespace: str = ""
    per_namespace: bool = False

    def __str__(self) -> str:
        group = f".{self.resource.group}" if self.resource.group else ""
        part = f"/{self.part}" if self.part else ""
        name = f" {self.name}" if self.name else ""
        return f"{self.verb} {self.resource.plural}{part}{group}{name}"


RIGHTS = (
    *(Right("follow", verb, resource) for resource in (*REQUIRED, *OPTIONAL) for verb in ("list", "watch")),
    Right("identify", "get", NAMESPACES, name="kube-system"),
    *(Right("elect", verb, LEASES, name=NAME, namespace=NAMESPACE) for verb in ("get", "update")),
    Right("elect", "create", LEASES, namespace=NAMESPACE),  # RBAC cannot limit create by name
    Right("bind", "create", PODS, "binding"),
    Right("bind", "get", PODS),
    *(Right("provide", verb, kind) for kind in (CLAIMS, VOLUMES) for verb in ("get", "patch")),
    Right("allocate", "get", DEVICE_CLASSES),
    *(Right("allocate", verb, RESOURCE_CLAIMS) for verb in ("get", "patch", "create", "delete")),
    Right("allocate", "patch", RESOURCE_CLAIMS, "status"),
    # This subresource is never called, but the API server checks the right when the allocation in a claim's status
    # changes.
    Right("allocate", "patch", RESOURCE_CLAIMS, "binding"),
    Right("explain", "patch", PODS, "status"),
    Right("explain", "patch", SCHEDULING_POLICIES, "status"),
    Right("explain", "create", EVENTS),
    Right("evict", "create", PODS, "eviction"),
    Right("recognise agents", "create", TOKEN_REVIEWS),
    *(Right("submit", verb, kind, per_namespace=True) for kind in SUBMITTED for verb in ("create", "get", "delete")),
)

# Rights of the service account of discovery. The verb create is needed for the first server-side apply of an object.
DISCOVERY_RIGHTS = (
    Right("discover", "get", NAMESPACES, name="kube-system"),
    Right("discover", "get", LEASES, name=NAME, namespace=NAMESPACE),
    Right("discover", "list", NODES),
    Right("discover", "patch", NODES),
    Right("discover", "patch", NODES, "status"),
    *(Right("discover", verb, kind) for kind in (TOPOLOGIES, NODE_GPUS) for verb in ("list", "create", "patch")),
)

# Needed only if the connection allows reading pull secrets, and only in namespaces that grant it.
PULL_RIGHTS = (Right("read private images", "get", SECRETS, per_namespace=True),)


class RightReview(msgspec.Struct, frozen=True):
    """Review result of one right in one namespace; `namespace` is empty for a right in the whole cluster."""

    right: Right
    namespace: str
    granted: bool
    reason: str = ""


class _AccessReview(msgspec.Struct):
    allowed: bool = False
    reason: str = ""
    evaluation_error: str = msgspec.field(default="", name="evaluationError")


class _AccessReviewResponse(msgspec.Struct):
    status: _AccessReview = msgspec.field(default_factory=_AccessReview)


_reviewed = msgspec.json.Decoder(_AccessReviewResponse)


def ask(api: Api, *, namespaces: Sequence[str], rights: Sequence[Right] = RIGHTS) -> Iterator[RightReview]:
    """Yield a review result for each right; rights on kinds that are not served are left out.

    Raises: ApiFailure if the API server does not respond.
    """
    served: dict[Resource, bool] = {}
    for right in rights:
        if right.resource not in served:
            served[right.resource] = is_served(api, right.resource)
        if served[right.resource]:
            for namespace in namespaces if right.per_namespace else (right.namespace,):
                review = _asked(api, right, namespace)
                yield RightReview(right, namespace, review.allowed, review.reason or review.evaluation_error)


def is_served(api: Api, resource: Resource) -> bool:
    """Return whether the API server serves this kind in one of its versions. Raises: ApiFailure."""
    return any(_is_listed(api, each) for each in resource.in_all_versions())


def _is_listed(api: Api, resource: Resource) -> bool:
    try:
        listed = msgspec.json.decode(api.get(f"/apis/{resource.api_version}" if resource.group else "/api/v1"))
    except ApiFailure as failure:
        if failure.status == 404:
            return False
        raise
    return any(found.get("name") == resource.plural for found in listed.get("resources", ()))


def _asked(api: Api, right: Right, namespace: str) -> _AccessReview:
    wanted = {
        "verb": right.verb,
        "group": right.resource.group,
        "version": right.resource.version,
        "resource": right.resource.plural,
        "subresource": right.part,
        "name": right.name,
        "namespace": namespace,
    }
    body = {"apiVersion": REVIEWS.api_version, "kind": REVIEWS.kind, "spec": {"resourceAttributes": wanted}}
    return _reviewed.decode(api.send("POST", REVIEWS.path(), encode(body))).status
