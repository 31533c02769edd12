"""Devices of DRA drivers, device classes, and resource claims of pods.

The structs hold the facts of the API objects unchanged. Selectors are CEL expressions. The engine does not evaluate
them: for each expression, the reader of the objects determines the devices for which the expression is true and those
for which its result is unknown (`SelectorVerdict`). Unsupported features are described as text in `unsupported` of a
claim and `blocked` of a device.
Source: Kubernetes resource.k8s.io/v1 ResourceSlice, DeviceClass, ResourceClaim.
"""

from __future__ import annotations

import msgspec

from .node_constraints import NodeTerm, Toleration
from .node_report import Taint

MOST_RESULTS = 32  # maximum number of devices of one claim in the API
CLASS_RESOURCE_PREFIX = "deviceclass.resource.kubernetes.io/"  # followed by the name of the class
Value = bool | int | str


class DeviceId(msgspec.Struct, frozen=True, order=True):
    """Identity of one device in a pool of a driver."""

    driver: str
    pool: str
    name: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.name}"

    @property
    def pool_key(self) -> str:
        """`driver/pool`."""
        return f"{self.driver}/{self.pool}"


class DeviceCapacity(msgspec.Struct, frozen=True):
    """Capacity of a device and its request policy, in thousandths.

    A request without an amount consumes `default`, or the whole `value`. Requested amounts are rounded up to one of
    `values`, or to `least` plus a multiple of `step`, and must not exceed `most`.
    """

    value: int
    default: int | None = None
    values: tuple[int, ...] = ()
    least: int | None = None
    most: int | None = None
    step: int | None = None


class BindingConditions(msgspec.Struct, frozen=True):
    """Condition types in a claim's status that a pod waits for before it is bound.

    The pod is bound when all `required` conditions of the device are true. If a `failure` condition is true, the
    allocation is withdrawn.
    """

    required: tuple[str, ...]
    failure: tuple[str, ...] = ()


class DevicePlace(msgspec.Struct, frozen=True):
    """Nodes that can access devices: `node`, or if it is empty those that match `terms`, or all if `terms` is None."""

    node: str = ""
    terms: tuple[NodeTerm, ...] | None = None


class Device(msgspec.Struct, frozen=True):
    """One device of a ResourceSlice.

    `node` is the only node that can access the device. If `node` is empty, the nodes that match `node_terms` can access
    the device, or all nodes if `node_terms` is None.

    `attributes` have qualified names, and `versions` contains those of type version. `capacity` has the published
    names. A `shared` device allows several allocations, each of which consumes capacity. `taints` are the NoSchedule
    and NoExecute taints of the slice and of DeviceTaintRules. `consumes` contains the amounts (in thousandths) of the
    pool's counters, by `set/counter`. `blocked` is the reason why the device must not be allocated. With
    `binds_to_node`, only the pod's node can use the device while it is allocated. `binding` contains the conditions for
    the binding of the pod, None if there are none.
    """

    id: DeviceId
    node: str = ""
    attributes: dict[str, Value] = {}
    versions: tuple[str, ...] = ()
    capacity: dict[str, DeviceCapacity] = {}
    blocked: str = ""
    taints: tuple[Taint, ...] = ()
    node_terms: tuple[NodeTerm, ...] | None = None
    consumes: dict[str, int] = {}
    shared: bool = False
    binds_to_node: bool = False
    binding: BindingConditions | None = None


class AllocatedDevice(msgspec.Struct, frozen=True, omit_defaults=True):
    """Device in the allocation of a claim.

    `consumed` is the consumed capacity (in thousandths, by name) if the claim has a share of the device, else None. A
    claim with admin access (`admin`) does not use the device exclusively. `not_ready` is the reason of the condition
    `Ready` of the device if the driver reports that it is false.
    """

    device: DeviceId
    admin: bool = False
    consumed: dict[str, int] | None = None
    not_ready: str = ""


class DeviceWish(msgspec.Struct, frozen=True):
    """Demand for `count` devices, or for all devices (`all`), of a class that match all selectors.

    If the request lists several alternatives, this is one of them and `name` is its name. `capacity` contains the
    requested amounts (in thousandths) by name. With `admin`, devices in use may be allocated too.
    """

    name: str
    device_class: str
    selectors: tuple[str, ...] = ()
    count: int = 1
    all: bool = False
    tolerations: tuple[Toleration, ...] = ()
    capacity: tuple[tuple[str, int], ...] = ()
    admin: bool = False


class DeviceRequest(msgspec.Struct, frozen=True):
    """One request of a claim; the first available alternative is allocated."""

    name: str
    wishes: tuple[DeviceWish, ...]


class AttributeConstraint(msgspec.Struct, frozen=True):
    """Constraint that all devices of these requests (all requests if empty) have the same value of an attribute.

    If `distinct` is true, all values must differ instead.
    """

    attribute: str
    requests: tuple[str, ...] = ()
    distinct: bool = False


class ResourceClaim(msgspec.Struct, frozen=True):
    """ResourceClaim. `allocated` contains its devices (None if it is not allocated).

    `node_terms` selects the nodes that can use the allocated devices (None: all nodes). `users` lists the UIDs of the
    pods for which the claim is reserved.
    """

    namespace: str
    name: str
    uid: str = ""
    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[AttributeConstraint, ...] = ()
    allocated: tuple[AllocatedDevice, ...] | None = None
    node_terms: tuple[NodeTerm, ...] | None = None
    users: tuple[str, ...] = ()
    deleting: bool = False
    unsupported: str = ""

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


class ExtendedRequest(msgspec.Struct, frozen=True):
    """Request of one container for an extended resource, which the devices of a class may serve.

    `container` is the index in `Shape.containers`. `position` is the index among all init containers, followed by the
    other containers. `rank` is the index of the resource among all requests of the container, sorted by name. An init
    container that is no sidecar is `short_lived`: its devices are released before the other containers start.
    """

    container: int
    position: int
    resource: str
    rank: int
    count: int
    short_lived: bool = False


class SelectorVerdict(msgspec.Struct, frozen=True):
    """Devices for which a selector expression is true or unknown, as indexes in `Devices.devices`.

    `reason` says why the result is unknown.
    """

    true: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()
    reason: str = ""


class Devices(msgspec.Struct, frozen=True):
    """All devices, the selectors of each class, all claims by `namespace/name`, and the verdict of each selector.

    `incomplete` lists pools with missing or contradictory slices, as `driver/pool`, and `incomplete_places` the nodes
    that can access the known slices of such a pool, by pool; a pool without an entry is on all nodes. `counters`
    contains the counters of each pool (in thousandths), by `driver/pool` and by `set/counter`. `extended` contains the
    class of each extended resource that a class names.
    """

    devices: tuple[Device, ...] = ()
    classes: dict[str, tuple[str, ...]] = {}
    claims: dict[str, ResourceClaim] = {}
    verdicts: dict[str, SelectorVerdict] = {}
    incomplete: tuple[str, ...] = ()
    counters: dict[str, dict[str, int]] = {}
    extended: dict[str, str] = {}
    incomplete_places: dict[str, tuple[DevicePlace, ...]] = {}

    def class_of(self, resource: str) -> str:
        """Return the name of the class whose devices serve an extended resource, "" if there is none.

        Each class also serves the resource that consists of `CLASS_RESOURCE_PREFIX` and the name of the class.
        """
        implicit = resource.removeprefix(CLASS_RESOURCE_PREFIX)
        if implicit != resource:
            return implicit if implicit in self.classes else ""
        return self.extended.get(resource, "")

    def __bool__(self) -> bool:
        return bool(self.devices or self.classes or self.claims)
