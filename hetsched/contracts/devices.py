"""Devices that drivers publish, the classes they are asked for by, and the claims of pods on them.

Rule: facts as the objects state them. Selectors are expressions of a language that the engine does not know: whoever
reads the objects says, for each expression, which devices it is true of and of which it cannot be told (`Verdict`).
What we do not do stands in words beside it: `unsupported` of a claim, `blocked` of a device.
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
    """A device: the node it is at (empty: it can be reached from all), and what is known of it.

    `attributes` and `capacity`, in thousandths, have qualified names; `versions` are the attributes that are versions.
    `blocked` says why it is not given to anybody.
    """

    id: DeviceId
    node: str = ""
    attributes: dict[str, Value] = {}
    versions: tuple[str, ...] = ()
    capacity: dict[str, int] = {}
    blocked: str = ""


class DeviceWish(msgspec.Struct, frozen=True):
    """Devices of one kind: `count` of them, or all that there are. `name` is that of one alternative among several."""

    name: str
    device_class: str
    selectors: tuple[str, ...] = ()
    count: int = 1
    all: bool = False


class DeviceRequest(msgspec.Struct, frozen=True):
    """One request of a claim: the first of its wishes that can be had."""

    name: str
    wishes: tuple[DeviceWish, ...]


class SameAttribute(msgspec.Struct, frozen=True):
    """All devices of these requests (none named: of all) must have one value of an attribute."""

    attribute: str
    requests: tuple[str, ...] = ()


class ResourceClaim(msgspec.Struct, frozen=True):
    """A claim. `allocated`: what it was given, by whomever, None while it has nothing; `node`: where that is.

    `users` are the uids of the pods that it is reserved for.
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


class Verdict(msgspec.Struct, frozen=True):
    """Of which devices (places in `Devices.devices`) an expression is true, of which it cannot be told, and why."""

    true: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()
    reason: str = ""


class Devices(msgspec.Struct, frozen=True):
    """All devices, the selectors of each class, all claims by `namespace/name`, and what the selectors say.

    `incomplete` are pools, as `driver/pool`, of which not every slice is there.
    """

    devices: tuple[Device, ...] = ()
    classes: dict[str, tuple[str, ...]] = {}
    claims: dict[str, ResourceClaim] = {}
    verdicts: dict[str, Verdict] = {}
    incomplete: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.devices or self.classes or self.claims)
