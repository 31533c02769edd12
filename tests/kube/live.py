"""All of hetsched as real processes on a real API server, and helpers to read the results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.resources import NODES, PODS
from tests.kube import kinds
from tests.kube.control_plane import ControlPlane
from tests.system.plane import Plane, served
from tests.system.processes import Process

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
