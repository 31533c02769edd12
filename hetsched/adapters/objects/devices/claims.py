"""Reader of ResourceClaims, and of the selectors of claims and device classes."""

from __future__ import annotations

from hetsched.contracts.objects.devices import (
    MOST_RESULTS,
    DeviceId,
    DeviceRequest,
    DeviceWish,
    ResourceClaim,
    SameAttribute,
)

from .. import keys
from ..fields import FieldView

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
            SameAttribute(constraint.text("matchAttribute"), tuple(constraint.value.get("requests") or ()))
        )
    if sum(max((wish.count for wish in request.wishes), default=0) for request in requests) > MOST_RESULTS:
        unsupported.append(f"{devices.path}: more than {MOST_RESULTS} devices")
    allocation = status.view("allocation")
    results = allocation.view("devices").views("results")
    allocated = tuple(DeviceId(result.text("driver"), result.text("pool"), result.text("device")) for result in results)
    node, elsewhere = _node_of(allocation)
    if elsewhere:
        unsupported.append("status.allocation.nodeSelector")
    return ResourceClaim(
        namespace=namespace,
        name=meta.text("name"),
        uid=meta.text("uid"),
        requests=requests,
        constraints=tuple(constraints),
        allocated=allocated if "allocation" in status else None,
        node=node,
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
    return DeviceWish(wish.text("name"), wish.text("deviceClassName"), selectors(wish), count, mode == "All")


def _node_of(allocation: FieldView) -> tuple[str, bool]:
    """Return the one node that an allocation names, and whether its node selector has an unsupported form."""
    terms = allocation.view("nodeSelector").views("nodeSelectorTerms")
    if not terms:
        return "", False
    fields = terms[0].views("matchFields")
    if len(terms) > 1 or len(fields) != 1 or terms[0].views("matchExpressions"):
        return "", True
    values = fields[0].value.get("values") or []
    if fields[0].text("key") != "metadata.name" or fields[0].text("operator") != "In" or len(values) != 1:
        return "", True
    return str(values[0]), False


def selectors(holder: FieldView) -> tuple[str, ...]:
    """Read the CEL expressions of a request or a class."""
    found = []
    for selector in holder.views("selectors"):
        # A selector that is not a CEL expression never matches.
        found.append(selector.view("cel").text("expression") if "cel" in selector else "")
    return tuple(found)
