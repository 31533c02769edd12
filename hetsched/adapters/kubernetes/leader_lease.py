"""The Lease of a cluster that says which installation schedules it.

Problem: leases in the database settle who of one installation acts, but two installations with a database each know
nothing of one another, and the same CPUs and cards would be granted by both.
Rule: coordination.k8s.io Lease `kube-system/hetsched`, kept as client-go's leader election keeps it: whoever renews it
holds it; it is over once its record has not changed for its duration, by the clock of the one who looks, so clocks need
not agree. Holder is `<installation>/<epoch>`. An installation takes its own Lease over at once from an earlier epoch
of itself; a later epoch under the same name is another copy of the database, and is waited for like a stranger.
Invariant: `lasting` is never true for longer than a rival has to wait. As with kube-scheduler this is timing, not
fencing: within an installation epochs of the database fence, between two only the uid of each binding does.
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
# Safety margin before the lease runs out, for the time that a call and a pause of the process may take.
_MARGIN_SECONDS = 5.0
_PATH = LEASES.path(namespace=NAMESPACE, name=NAME)


class _Spec(msgspec.Struct):
    holder: str | None = msgspec.field(default=None, name="holderIdentity")
    duration: int | None = msgspec.field(default=None, name="leaseDurationSeconds")
    transitions: int | None = msgspec.field(default=None, name="leaseTransitions")
    acquired: str | None = msgspec.field(default=None, name="acquireTime")


class _Meta(msgspec.Struct):
    version: str = msgspec.field(name="resourceVersion")


class _Lease(msgspec.Struct):
    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)


_lease = msgspec.json.Decoder(_Lease)


def holder_of_lease(api: Api) -> str:
    """Return who holds the Lease, `<installation>/<epoch>`; empty where nobody does. Raises: ApiFailure."""
    try:
        return _lease.decode(api.get(_PATH)).spec.holder or ""
    except ApiFailure as failure:
        if failure.status == 404:
            return ""
        raise


class Election:
    """One installation's stand for one cluster."""

    def __init__(self, installation: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.installation = installation
        self._clock = clock
        self._until = 0.0
        self._seen: tuple[str, float] = ("", 0.0)  # the version of the record, and when it was new to us

    @property
    def lasting(self) -> bool:
        """Tell whether the Lease is surely ours now."""
        return self._clock() < self._until

    def stand(self, api: Api, epoch: int) -> str:
        """Take or renew the Lease; return who else holds it, empty if it is ours. Raises: ApiFailure."""
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
            return "whoever was faster just now"
        self._until = asked + DURATION_SECONDS - _MARGIN_SECONDS
        return ""

    def step_down(self, api: Api, epoch: int) -> None:
        """Leave the Lease to whoever wants it, if it is ours. Raises: ApiFailure."""
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
        before = found.spec if found else _Spec()
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
