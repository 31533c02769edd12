"""Devices of DRA drivers, device classes, and the claims of pods on them.

The structs hold facts as the objects state them. Selectors are CEL expressions, which the engine does not evaluate: the
reader of the objects evaluates, for each expression, the devices for which it is true or undecidable
(`SelectorVerdict`). Unsupported features are described in words: `unsupported` of a claim, `blocked` of a device.
Source: Kubernetes resource.k8s.io/v1 ResourceSlice, DeviceClass, ResourceClaim.
"""

from __future__ import annotations

import msgspec

MOST_RESULTS = 32  # devices of one claim, by the API
Value = bool | int | str


class DeviceId(msgspec.Struct, frozen=True, order=True):
    """One device, in a pool of a driver."""

    driver: str
    pool: str
    name: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.name}"


class Device(msgspec.Struct, frozen=True):
    """Device: its node (empty: reachable from all nodes) and its facts.

    `attributes` and `capacity`, in thousandths, have qualified names; `versions` are the attributes of type version.
    `blocked` is the reason why the device must not be allocated.
    """

    id: DeviceId
    node: str = ""
    attributes: dict[str, Value] = {}
    versions: tuple[str, ...] = ()
    capacity: dict[str, int] = {}
    blocked: str = ""


class DeviceWish(msgspec.Struct, frozen=True):
    """Devices of one kind: `count` of them, or all. `name` is that of one alternative among several."""

    name: str
    device_class: str
    selectors: tuple[str, ...] = ()
    count: int = 1
    all: bool = False


class DeviceRequest(msgspec.Struct, frozen=True):
    """One request of a claim: the first of its alternatives that is available."""

    name: str
    wishes: tuple[DeviceWish, ...]


class SameAttribute(msgspec.Struct, frozen=True):
    """All devices of these requests (if none is named: of all) must have the same value of an attribute."""

    attribute: str
    requests: tuple[str, ...] = ()


class ResourceClaim(msgspec.Struct, frozen=True):
    """Resource claim. `allocated`: its devices, None without an allocation; `node`: the node of the allocation.

    `users` are the UIDs of the pods that the claim is reserved for.
    """

    namespace: str
    name: str
    uid: str = ""
    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[SameAttribute, ...] = ()
    allocated: tuple[DeviceId, ...] | None = None
    node: str = ""
    users: tuple[str, ...] = ()
    deleting: bool = False
    unsupported: str = ""

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


class SelectorVerdict(msgspec.Struct, frozen=True):
    """Devices (indexes in `Devices.devices`) for which an expression is true or unknown, and the reason."""

    true: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()
    reason: str = ""


class Devices(msgspec.Struct, frozen=True):
    """All devices, the selectors of each class, all claims by `namespace/name`, and the verdicts of the selectors.

    `incomplete` are pools, as `driver/pool`, of which slices are missing.
    """

    devices: tuple[Device, ...] = ()
    classes: dict[str, tuple[str, ...]] = {}
    claims: dict[str, ResourceClaim] = {}
    verdicts: dict[str, SelectorVerdict] = {}
    incomplete: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.devices or self.classes or self.claims)
