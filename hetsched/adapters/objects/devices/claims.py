"""Reader of ResourceClaims, and of the selectors of claims and device classes.

The devices of an allocated claim are in use, also if the claim cannot be read completely: requested capacity that is
too large for hetsched is an unsupported feature, and a share with such consumed capacity uses its whole device.
"""

from __future__ import annotations

from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.devices import (
    MOST_RESULTS,
    AllocatedDevice,
    AttributeConstraint,
    DeviceId,
    DeviceRequest,
    DeviceWish,
    ResourceClaim,
)
from hetsched.contracts.objects.node_constraints import Toleration

from .. import keys
from ..cel_selectors import quantity
from ..fields import FieldView
from ..selectors import node_terms

_REQUEST = {"deviceClassName", "selectors", "allocationMode", "count", "tolerations", "adminAccess", "capacity", "name"}
_LONGEST = 1000  # characters of a text that a driver reports
_CONSTRAINT = {"matchAttribute", "distinctAttribute", "requests"}


def resource_claim(root: FieldView, namespace: str) -> ResourceClaim:
    """Read a ResourceClaim; `unsupported` names a feature that is not implemented."""
    meta, devices, status = root.view("metadata"), root.view("spec").view("devices"), root.view("status")
    unsupported: list[str] = []
    requests = tuple(_request(request, unsupported) for request in devices.views("requests"))
    constraints = tuple(_constraint(constraint, unsupported) for constraint in devices.views("constraints"))
    if sum(min((wish.count for wish in request.wishes), default=0) for request in requests) > MOST_RESULTS:
        unsupported.append(f"{devices.path}: more than {MOST_RESULTS} devices")
    allocation = status.view("allocation")
    results = allocation.view("devices").views("results")
    states = {_identity(state): state for state in status.views("devices")}
    allocated = tuple(_allocated_device(result, states.get(_identity(result))) for result in results)
    return ResourceClaim(
        namespace=namespace,
        name=meta.text("name"),
        uid=meta.text("uid"),
        requests=requests,
        constraints=constraints,
        allocated=allocated if "allocation" in status else None,
        node_terms=node_terms(allocation),
        users=tuple(user.text("uid") for user in status.views("reservedFor")),
        deleting="deletionTimestamp" in meta,
        unsupported=devices.text(keys.EXPORT_UNSUPPORTED) or (unsupported[0] if unsupported else ""),
    )


def _identity(device: FieldView) -> tuple[str, ...]:
    return tuple(device.text(key) for key in ("driver", "pool", "device", "shareID"))


def _not_ready(state: FieldView | None) -> str:
    """Return the reason of the condition `Ready` of an allocated device if it is false, else "".

    The message of the condition is not read: if it contained a time, the devices of the cluster would change with it.
    """
    for condition in state.views("conditions") if state is not None else ():
        if condition.text("type") == "Ready" and condition.text("status") == "False":
            return condition.text("reason")[:_LONGEST] or "NotReady"
    return ""


def _allocated_device(result: FieldView, state: FieldView | None) -> AllocatedDevice:
    return AllocatedDevice(
        DeviceId(result.text("driver"), result.text("pool"), result.text("device")),
        admin=result.flag("adminAccess"),
        consumed=_consumed(result) if "shareID" in result else None,
        not_ready=_not_ready(state),
    )


def _consumed(share: FieldView) -> dict[str, int] | None:
    """Return the consumed capacity in thousandths by name, or None if an amount is too large."""
    consumed = share.view("consumedCapacity")
    found = {name: _maybe_quantity(consumed, name) for name in consumed.value}
    known = {name: amount for name, amount in found.items() if amount is not None}
    return known if len(known) == len(found) else None


def _maybe_quantity(view: FieldView, name: str) -> int | None:
    """Return a quantity in thousandths, or None if it is too large. Raises: InputError."""
    try:
        return quantity(view.text(name))
    except InputError as error:
        if error.code != "QuantityTooLarge":
            raise
        return None


def _constraint(constraint: FieldView, unsupported: list[str]) -> AttributeConstraint:
    extra = sorted(set(constraint.value) - _CONSTRAINT)
    distinct = "distinctAttribute" in constraint
    if extra or distinct == ("matchAttribute" in constraint):
        unsupported.append(constraint.place(extra[0] if extra else "matchAttribute"))
    attribute = constraint.text("distinctAttribute" if distinct else "matchAttribute")
    return AttributeConstraint(attribute, constraint.texts("requests"), distinct)


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
    requested = wish.view("capacity").view("requests")
    capacity = {name: _maybe_quantity(requested, name) for name in sorted(requested.value)}
    unsupported += [requested.place(name) for name, amount in capacity.items() if amount is None]
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
        capacity=tuple((name, amount) for name, amount in capacity.items() if amount is not None),
        admin=wish.flag("adminAccess"),
    )


def selectors(holder: FieldView) -> tuple[str, ...]:
    """Read the CEL expressions of a request or a class."""
    found = []
    for selector in holder.views("selectors"):
        # A selector that is not a CEL expression never matches.
        found.append(selector.view("cel").text("expression") if "cel" in selector else "")
    return tuple(found)
