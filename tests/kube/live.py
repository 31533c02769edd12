"""All of hetsched as real processes on a real API server, and helpers to read the results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.resources import NODES, PODS
from tests.fault_table import Faults
from tests.kube import kinds, mixed_fleet
from tests.kube.control_plane import ControlPlane
from tests.system.plane import Plane, served
from tests.system.processes import Process, wait_until

# Leases and sweeps determine when another process takes over. The forced hold is short because no kubelet reports the
# end of a pod that no informer saw.
PACE = {"HETSCHED_LEASE_SECONDS": "3", "HETSCHED_SWEEP_SECONDS": "1", "HETSCHED_FORCED_HOLD_SECONDS": "2"}
Json = dict[str, Any]


@contextmanager
def connected(plane: ControlPlane, **settings: str) -> Iterator[Plane]:
    """Connect a control plane on PostgreSQL and Redis to an API server with all CRDs; no process is started yet."""
    with ExitStack() as stack:
        stack.enter_context(kinds.installed(plane, [*kinds.ours(), *kinds.theirs()]))
        ours = stack.enter_context(served(**settings))
        kubeconfig = ours.folder / "kubeconfig"
        kubeconfig.write_text(json.dumps(plane.kubeconfig()))
        assert ours.driver
        ours.driver("connect", kubeconfig=str(kubeconfig))
        yield ours


def start_watch(ours: Plane) -> Process:
    return ours.start("watch", "-m", "django", "watch")


@contextmanager
def scheduling(plane: ControlPlane, **settings: str) -> Iterator[Plane]:
    """Run one process of each kind."""
    with connected(plane, **settings) as ours:
        start_watch(ours)
        ours.start_worker()
        ours.start_beat()
        yield ours


def listed(api: Api) -> tuple[list[Json], list[Json]]:
    """Return the pods and the nodes of the API server."""
    pods, nodes = ([json.loads(body) for body in api.list_all(kind)[0]] for kind in (PODS, NODES))
    return pods, nodes


def node_of(pod: Json) -> str:
    return str(pod["spec"].get("nodeName", ""))


def reason(pod: Json) -> str:
    """Return the message of the pod's PodScheduled condition."""
    conditions = pod["status"].get("conditions") or ()
    return next((condition.get("message", "") for condition in conditions if condition["type"] == "PodScheduled"), "")


def count_faults(api: Api, ours: Plane, faults: Faults, wanted: int, *, where: str, seconds: float) -> None:
    """Wait until `wanted` pods of a mixed fleet are bound and have reservations; count and refuse faults."""
    assert ours.driver
    ask = ours.driver

    def bound() -> list[list[str]]:
        return sorted([pod["metadata"]["name"], node_of(pod)] for pod in listed(api)[0] if node_of(pod))

    with suppress(AssertionError):  # the faults are counted
        wait_until(lambda: len(bound()) >= wanted and ask("held") == bound(), what=where, seconds=seconds)
    pods, nodes = listed(api)
    faults.add("lost", range(wanted - len(bound())))
    faults.add("bound twice", [*mixed_fleet.placement_violations(pods, nodes), *ask("violations")])
    faults.compare(bound(), ask("held"))
    _assert_none(ours, faults, where)


def count_leaked(ours: Plane, faults: Faults, *, where: str, seconds: float) -> None:
    """Wait until no reservation is left after all pods were deleted; count and refuse faults."""
    assert ours.driver
    ask = ours.driver
    with suppress(AssertionError):
        wait_until(lambda: ask("held") == [], what=where, seconds=seconds)
    faults.add("leaked", ask("held"))
    faults.add("bound twice", ask("violations"))
    _assert_none(ours, faults, where)


def count_early_releases(api: Api, ours: Plane, faults: Faults, *, where: str) -> None:
    """Count bound pods without a reservation, which comes before the binding; no pod may be deleted at the moment."""
    assert ours.driver
    bound = {(pod["metadata"]["name"], node_of(pod)) for pod in listed(api)[0] if node_of(pod)}
    faults.add("freed early", bound - {(pod, node) for pod, node in ours.driver("held")})
    faults.assert_none(where)


def _assert_none(ours: Plane, faults: Faults, where: str) -> None:
    """Refuse faults, with the states of the pods and the ends of the logs."""
    assert ours.driver
    if faults.texts:
        where = f"{where}: {ours.driver('live_states')}\n{ours.log_tails()}"
    faults.assert_none(where)
