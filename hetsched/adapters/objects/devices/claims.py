"""Reader of ResourceClaims, and of the selectors of claims and device classes."""

from __future__ import annotations

from hetsched.contracts.objects.devices import (
    MOST_RESULTS,
    AttributeConstraint,
    DeviceId,
    DeviceRequest,
    DeviceWish,
    ResourceClaim,
)
from hetsched.contracts.objects.node_constraints import Toleration

from .. import keys
from ..fields import FieldView
from ..selectors import node_terms

_REQUEST = {"deviceClassName", "selectors", "allocationMode", "count", "tolerations", "adminAccess", "name"}


def resource_claim(root: FieldView, namespace: str) -> ResourceClaim:
    """Read a ResourceClaim; `unsupported` names a feature that is not implemented."""
    meta, devices, status = root.view("metadata"), root.view("spec").view("devices"), root.view("status")
    unsupported: list[str] = []
    requests = tuple(_request(request, unsupported) for request in devices.views("requests"))
    constraints = []
    for constraint in devices.views("constraints"):
        if "matchAttribute" not in constraint or set(constraint.value) - {"matchAttribute", "requests"}:
            unsupported.append(constraint.place(next(iter(set(constraint.value) - {"requests"}), "")))
        constraints.append(
            AttributeConstraint(constraint.text("matchAttribute"), tuple(constraint.value.get("requests") or ()))
        )
    if sum(min((wish.count for wish in request.wishes), default=0) for request in requests) > MOST_RESULTS:
        unsupported.append(f"{devices.path}: more than {MOST_RESULTS} devices")
    allocation = status.view("allocation")
    results = allocation.view("devices").views("results")
    allocated = tuple(DeviceId(result.text("driver"), result.text("pool"), result.text("device")) for result in results)
    return ResourceClaim(
        namespace=namespace,
        name=meta.text("name"),
        uid=meta.text("uid"),
        requests=requests,
        constraints=tuple(constraints),
        allocated=allocated if "allocation" in status else None,
        node_terms=node_terms(allocation),
        users=tuple(user.text("uid") for user in status.views("reservedFor")),
        deleting="deletionTimestamp" in meta,
        unsupported=devices.text(keys.EXPORT_UNSUPPORTED) or (unsupported[0] if unsupported else ""),
    )


def _request(request: FieldView, unsupported: list[str]) -> DeviceRequest:
    alternatives = request.views("firstAvailable")
    wishes = alternatives or [request.view("exactly")]
    extra = sorted(set(request.value) - {"name", "exactly", "firstAvailable"})
    if extra:
        unsupported.append(request.place(extra[0]))
    return DeviceRequest(request.text("name"), tuple(_wish(wish, unsupported) for wish in wishes))


def _wish(wish: FieldView, unsupported: list[str]) -> DeviceWish:
    extra = sorted(set(wish.value) - _REQUEST)
    if extra:
        unsupported.append(wish.place(extra[0]))
    if wish.flag("adminAccess"):
        unsupported.append(wish.place("adminAccess"))
    mode = wish.text("allocationMode", "ExactCount")
    if mode not in ("ExactCount", "All"):
        unsupported.append(wish.place("allocationMode"))
    count = wish.integer("count", 1, least=1)
    return DeviceWish(
        name=wish.text("name"),
        device_class=wish.text("deviceClassName"),
        selectors=selectors(wish),
        count=count,
        all=mode == "All",
        tolerations=tuple(
            Toleration(
                toleration.text("key"),
                toleration.text("operator", "Equal"),
                toleration.text("value"),
                toleration.text("effect"),
            )
            for toleration in wish.views("tolerations")
        ),
    )


def selectors(holder: FieldView) -> tuple[str, ...]:
    """Read the CEL expressions of a request or a class."""
    found = []
    for selector in holder.views("selectors"):
        # A selector that is not a CEL expression never matches.
        found.append(selector.view("cel").text("expression") if "cel" in selector else "")
    return tuple(found)
