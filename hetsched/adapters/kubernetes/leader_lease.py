"""The Lease `kube-system/hetsched` of a cluster: acquire, renew and release it, as in client-go.

Database leases elect a process within one installation. Two installations with separate databases need this Lease, or
both would allocate the same CPUs and GPUs. The protocol is that of client-go's leader election: the holder renews the
Lease, and the Lease expires if its record does not change for the lease duration. Each observer measures this duration
with its own monotonic clock, so clocks need not agree. The holder identity is `<installation>/<epoch>`. An installation
immediately takes over its own Lease from an earlier epoch. A later epoch under the same name belongs to another copy of
the database and is treated like any other holder.
Invariant: `is_held` becomes false before a rival may take over the Lease. As in kube-scheduler, this relies on timing
and does not fence writes. Within an installation, the epochs of the database fence writes. Between two installations,
only the uid in each Binding prevents conflicting writes.
Source: https://pkg.go.dev/k8s.io/client-go/tools/leaderelection
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from .api import Api, ApiFailure
from .resources import LEASES

NAMESPACE, NAME = "kube-system", "hetsched"
DURATION_SECONDS = 15.0
RENEW_SECONDS = 4.0
# Safety margin before the Lease expires; it covers the duration of a call and a pause of the process.
_MARGIN_SECONDS = 5.0
_MOST_WRITES = 3
_PATH = LEASES.path(namespace=NAMESPACE, name=NAME)


class _LeaseSpec(msgspec.Struct):
    holder: str | None = msgspec.field(default=None, name="holderIdentity")
    duration: int | None = msgspec.field(default=None, name="leaseDurationSeconds")
    transitions: int | None = msgspec.field(default=None, name="leaseTransitions")
    acquired: str | None = msgspec.field(default=None, name="acquireTime")


class _LeaseMeta(msgspec.Struct):
    version: str = msgspec.field(name="resourceVersion")


class _Lease(msgspec.Struct):
    metadata: _LeaseMeta
    spec: _LeaseSpec = msgspec.field(default_factory=_LeaseSpec)


_lease = msgspec.json.Decoder(_Lease)


def holder_of_lease(api: Api) -> str:
    """Return the holder of the Lease as `<installation>/<epoch>`, or "" if there is none. Raises: ApiFailure."""
    try:
        return _lease.decode(api.get(_PATH)).spec.holder or ""
    except ApiFailure as failure:
        if failure.status == 404:
            return ""
        raise


class Election:
    """Candidacy of one installation in the leader election of one cluster."""

    def __init__(self, installation: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.installation = installation
        self._clock = clock
        self._until = 0.0
        # resourceVersion of the record, and the time when this version was first observed
        self._seen: tuple[str, float] = ("", 0.0)

    @property
    def is_held(self) -> bool:
        """Return whether this installation certainly holds the Lease now."""
        return self._clock() < self._until

    def acquire(self, api: Api, epoch: int) -> str:
        """Acquire or renew the Lease. Return the other holder, or "" on success. Raises: ApiFailure.

        If another process writes the Lease in the meantime, read it again: during a handover, the previous process of
        this installation releases the Lease.
        """
        for _ in range(_MOST_WRITES):
            holder = self._acquire(api, epoch)
            if holder is not None:
                return holder
        return "unknown (other processes updated the Lease first)"

    def _acquire(self, api: Api, epoch: int) -> str | None:
        """Acquire or renew the Lease once; return None if it was written since it was read."""
        asked = self._clock()
        try:
            found = _lease.decode(api.get(_PATH))
        except ApiFailure as failure:
            if failure.status != 404:
                raise
            found = None
        if found is not None and not self._may_take(found, epoch):
            return found.spec.holder or ""
        try:
            self._write(api, found, epoch)
        except ApiFailure as failure:
            if failure.status != 409:
                raise
            return None
        self._until = asked + DURATION_SECONDS - _MARGIN_SECONDS
        return ""

    def step_down(self, api: Api, epoch: int) -> None:
        """Release the Lease if this installation holds it. Raises: ApiFailure."""
        self._until = 0.0
        found = _lease.decode(api.get(_PATH))
        if found.spec.holder == self._name(epoch):
            self._write(api, found, epoch, held=False)

    def _name(self, epoch: int) -> str:
        return f"{self.installation}/{epoch}"

    def _may_take(self, found: _Lease, epoch: int) -> bool:
        if self._seen[0] != found.metadata.version:
            self._seen = (found.metadata.version, self._clock())
        holder = found.spec.holder or ""
        installation, _, theirs = holder.rpartition("/")
        earlier = theirs.isdecimal() and int(theirs) <= epoch
        if not holder or (installation == self.installation and earlier):
            return True
        return self._clock() - self._seen[1] > (found.spec.duration or DURATION_SECONDS)

    def _write(self, api: Api, found: _Lease | None, epoch: int, *, held: bool = True) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = found.spec if found else _LeaseSpec()
        same = before.holder == self._name(epoch)
        meta: dict[str, Any] = {"name": NAME, "namespace": NAMESPACE}
        if found is not None:
            meta["resourceVersion"] = found.metadata.version
        body = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": meta,
            "spec": {
                "holderIdentity": self._name(epoch) if held else "",
                "leaseDurationSeconds": int(DURATION_SECONDS),
                "acquireTime": before.acquired if same and before.acquired else now,
                "renewTime": now,
                "leaseTransitions": (before.transitions or 0) + (not same),
            },
        }
        path = LEASES.path(namespace=NAMESPACE) if found is None else _PATH
        api.send("POST" if found is None else "PUT", path, json.dumps(body).encode())
