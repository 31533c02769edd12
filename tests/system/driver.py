"""A helper process inside a control plane that runs requests that a test cannot run from outside.

Each input line is a JSON request, `{"do": name, ...arguments}`, and each output line is the JSON response. The process
has the environment of the control plane's other processes, so it uses their database and wakes their workers.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.system import device_races, projection, submission_races
from tests.system.processes import ROOT, python


class Driver:
    """The test's end of the pipes."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            python("-m", "tests.system.driver"),
            env=dict(env),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, do: str, **arguments: Any) -> Any:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the driver ended at {do!r}"
        return json.loads(answer)

    def close(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


def execute(code: str) -> str:
    """Run Python source; return what it printed."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, {})
    return printed.getvalue()


def connect(kubeconfig: str) -> None:
    """Connect the live cluster."""
    from django.core.management import call_command

    call_command("connect", "live", kubeconfig=Path(kubeconfig), stdout=io.StringIO())


def add_cluster(name: str, nodes: int, pods: int = 110, claims: int = 0) -> int:
    """Add an offline cluster of equal nodes with 16 CPUs, 64 GiB, 4 GPUs and a maximum of `pods` pods each.

    With `claims`, the nodes also have devices, and the cluster has this number of unallocated device claims.
    """
    from hetsched.journal.audit import SYSTEM
    from hetsched.placement.actions import import_cluster

    objects: list[dict[str, Any]] = []
    for number in range(nodes):
        node = f"node-{number:03}"
        allocatable = {"cpu": "16", "memory": "64Gi", "pods": str(pods), "nvidia.com/gpu": "4"}
        ready = [{"type": "Ready", "status": "True"}]
        cards = [{"index": index, "uuid": f"GPU-{number}-{index}", "memoryMiB": 16384} for index in range(4)]
        labels = {"kubernetes.io/arch": "amd64", "kubernetes.io/hostname": node}
        objects += [
            {
                "apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": labels},
                "status": {"allocatable": allocatable, "conditions": ready},
            },
            {
                "apiVersion": "hetsched.io/v1alpha1", "kind": "NodeGpu", "metadata": {"name": node},
                "spec": {"cards": cards},
            },
        ]  # fmt: skip
    if claims:
        objects += _device_objects([f"node-{number:03}" for number in range(nodes)], claims)
    return import_cluster(_read(objects, workload=False), name=name, kind="offline", actor=SYSTEM).pk


def _device_objects(nodes: list[str], claims: int) -> list[dict[str, Any]]:
    """Return two devices, three partitions with shared counters and a shared device of each node, and claims on them.

    The claims `claim-N` request in turn one or two devices or partitions, or a share of the shared device.
    """
    api, found = "resource.k8s.io/v1", []
    pool = {"generation": 1, "resourceSliceCount": 2}
    for node in nodes:
        consumed = [{"counterSet": "slots", "counters": {"n": {"value": "1"}}}]
        devices: list[dict[str, Any]] = [{"name": f"whole-{number}"} for number in range(2)]
        devices += [{"name": f"part-{number}", "consumesCounters": consumed} for number in range(3)]
        memory = {"memory": {"value": "10"}}
        devices.append({"name": "shared", "allowMultipleAllocations": True, "capacity": memory})
        slots = [{"name": "slots", "counters": {"n": {"value": "2"}}}]
        for name, fields in (
            ("devices", {"nodeName": node, "devices": devices}),
            ("counters", {"sharedCounters": slots}),
        ):
            spec = {"driver": "gpu.example.com", "pool": {"name": node, **pool}, **fields}
            found.append(
                {"apiVersion": api, "kind": "ResourceSlice", "metadata": {"name": f"{node}-{name}"}, "spec": spec}
            )
    found.append({"apiVersion": api, "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}})
    share = {"deviceClassName": "gpu", "capacity": {"requests": {"memory": "4"}}}
    for number in range(claims):
        request = share if number % 2 else {"deviceClassName": "gpu", "count": 1 + number // 2 % 2}
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": request}]}}
        meta = {"name": f"claim-{number}", "namespace": "default", "uid": f"uid-{number}"}
        found.append({"apiVersion": api, "kind": "ResourceClaim", "metadata": meta, "spec": spec})
    return found


def submit(cluster: str, prefix: str, pods: int) -> str:
    """Submit pods that all fit: one third small, one third with a whole GPU, one third with 300 milli of a GPU."""
    from hetsched.inventory.models import Cluster
    from hetsched.journal.audit import SYSTEM
    from hetsched.placement import actions

    cards = ({}, {"hetsched.io/gpu-milli": "1000"}, {"hetsched.io/gpu-milli": "300"})
    requests = {"cpu": "500m", "memory": "512Mi"}
    objects = [
        {
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": f"{prefix}-{number}", "namespace": "crash", "annotations": cards[number % 3]},
            "spec": {"containers": [{"name": "main", "image": "job:1", "resources": {"requests": requests}}]},
        }
        for number in range(pods)
    ]  # fmt: skip
    content = _read(objects, workload=True)
    return actions.submit(Cluster.objects.get(name=cluster), content.pending, actor=SYSTEM).workload_id


def states(workload: str) -> dict[str, int]:
    """Count a workload's pods by state."""
    from hetsched.placement.models import Pod

    return dict(Counter(Pod.objects.filter(workload=workload).values_list("state", flat=True)))


def reservation_counts(workload: str) -> dict[str, int]:
    """Count a workload's pods, those with an active reservation, and its active reservations."""
    from hetsched.placement.models import Pod, Reservation

    active = Reservation.objects.filter(pod__workload=workload, active=True)
    return {
        "pods": Pod.objects.filter(workload=workload).count(),
        "holding": active.values("pod").distinct().count(),
        "reservations": active.count(),
    }


def workloads() -> dict[str, int]:
    """Count all workloads by state."""
    from hetsched.placement.models import Workload

    return dict(Counter(Workload.objects.values_list("state", flat=True)))


def placed_pods(workloads: list[str]) -> list[int]:
    """Count the placed pods of these workloads, and their decisions beyond one for each pod."""
    from hetsched.placement.models import Decision, Pod

    pods = dict(Pod.objects.filter(workload__in=workloads).exclude(node=None).values_list("id", "workload"))
    decided = Counter(Decision.objects.filter(workload__in=workloads).values_list("pod", flat=True))
    return [len(pods), decided.total() - len(pods)]


def live_states() -> dict[str, int]:
    """Count all pods by state."""
    from hetsched.placement.models import Pod

    return dict(Counter(Pod.objects.values_list("state", flat=True)))


def follower() -> dict[str, Any]:
    """Return the informer process of the live cluster and its epoch."""
    from hetsched.inventory.models import Connection

    (found,) = Connection.objects.all()
    return {"id": found.follower_id, "epoch": found.follower_epoch}


def held() -> list[list[str]]:
    """Return the pods with reservations, each with its node, in order."""
    from hetsched.placement.models import Reservation

    return sorted(
        [pod, node] for pod, node in Reservation.objects.filter(active=True).values_list("pod__name", "node__name")
    )


def violations() -> list[str]:
    from hetsched.placement.queries.invariants import check_invariants

    return [str(violation) for violation in check_invariants()]


def cancel(workload: str) -> None:
    from hetsched.journal.audit import SYSTEM
    from hetsched.placement import actions
    from hetsched.placement.models import Workload

    actions.cancel(Workload.objects.get(pk=workload), actor=SYSTEM, reason="the round is over")


def _read(objects: list[dict[str, Any]], *, workload: bool) -> Any:
    from hetsched.adapters.objects.documents import load_documents
    from hetsched.adapters.objects.manifests import read_content

    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}).encode()
    return read_content(load_documents(text, name="test"), workload=workload)


def enable_preemption() -> int:
    """Activate the default policy with the preemption plugin appended; return the version."""
    import msgspec

    from hetsched.contracts.objects.policy import PluginUse
    from hetsched.engine.framework.builtin_policies import BUILTIN, DEFAULT
    from hetsched.journal.audit import SYSTEM
    from hetsched.policies.actions import activate, save_draft

    spec = BUILTIN[DEFAULT]
    plugins = (*(use for use in spec.plugins if use.name != "preemption"), PluginUse("preemption"))
    version = save_draft(msgspec.structs.replace(spec, plugins=plugins), actor=SYSTEM).version
    activate(DEFAULT, version, actor=SYSTEM, reason="a test")
    return version


def race_rate(key: str, most: int, threads: int) -> dict[str, Any]:
    """Take tokens concurrently from one bucket with a negligible refill rate; count the admitted requests."""
    from hetsched.access.limits import Limit, take

    # The bucket is refilled by one token an hour.
    admitted, errors = in_threads(lambda number: take(key, Limit(1 / 60, most)).admitted, threads)
    return {"admitted": admitted.count(True), "refused": admitted.count(False), "errors": errors}


def race_quota(cluster: str, prefix: str, most: int, threads: int) -> dict[str, int]:
    """Submit one pod in each of several namespaces concurrently, for one owner with a quota of `most`; count the
    results.
    """
    from hetsched.contracts.objects.allowance import Allowance

    def one(number: int) -> str:
        return _submitted(cluster, prefix, number, f"{prefix}-{number}", Allowance({"pods": most}))

    return dict(Counter(in_threads(one, threads)[0]))


def race_namespace(cluster: str, prefix: str, threads: int) -> dict[str, int]:
    """Submit pods concurrently to one namespace with a limit of pending pods; count the results."""
    from hetsched.contracts.objects.allowance import UNLIMITED

    return dict(Counter(in_threads(lambda number: _submitted(cluster, prefix, number, prefix, UNLIMITED), threads)[0]))


def race_shared_namespace(cluster: str, prefix: str, most: int, threads: int, rounds: int) -> dict[str, int]:
    """Submit pods to one namespace in rounds of concurrent threads, which share its lock far from the limit `most`.

    Returns: the number of each result, and of the shared locks.
    """
    from unittest.mock import patch

    from django.conf import settings

    from hetsched.contracts.objects.allowance import UNLIMITED
    from hetsched.placement import quotas
    from hetsched.storage.named_locks import lock

    results: Counter[str] = Counter()

    def counted_lock(names: Any, *, shared: bool = False) -> None:
        lock(names, shared=shared)
        results["shared"] += shared

    with (
        patch.object(settings, "HETSCHED_MOST_WAITING_PODS_PER_NAMESPACE", most),
        patch.multiple(quotas, _RESERVED_PODS=threads, lock=counted_lock),
    ):
        for done in range(0, rounds * threads, threads):
            name = f"{prefix}-{done}"
            found, errors = in_threads(
                lambda number, name=name: _submitted(cluster, name, number, prefix, UNLIMITED),  # type: ignore[misc]
                threads,
            )
            results.update([*found, *errors])
    return dict(results)


def _submitted(cluster: str, prefix: str, number: int, namespace: str, allowance: Any) -> str:
    from hetsched.contracts.errors import InputError
    from hetsched.inventory.models import Cluster
    from hetsched.journal.audit import SYSTEM
    from hetsched.placement import actions

    container = {"name": "main", "image": "job:1", "resources": {"requests": {"cpu": "1m"}}}
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{prefix}-{number}", "namespace": namespace},
        "spec": {"containers": [container]},
    }  # fmt: skip
    content = _read([pod], workload=True)
    try:
        where = Cluster.objects.get(name=cluster)
        actions.submit(where, content.pending, actor=SYSTEM, owner=prefix, allowance=allowance)
    except InputError as error:
        return error.code
    return "202"


def in_threads(work: Callable[[int], Any], threads: int) -> tuple[list[Any], list[str]]:
    """Run a function in many threads that start together; return the results and the errors."""
    from django.db import connection

    begin, given, errors = threading.Barrier(threads), [], []

    def run(number: int) -> None:
        begin.wait()
        try:
            given.append(work(number))
        except Exception as error:
            errors.append(repr(error)[:300])
        finally:
            connection.close()

    racing = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in racing:
        thread.start()
    for thread in racing:
        thread.join()
    return given, errors


HANDLERS = {
    handler.__name__: handler
    for handler in (
        execute,
        connect,
        add_cluster,
        enable_preemption,
        submit,
        states,
        workloads,
        placed_pods,
        live_states,
        follower,
        reservation_counts,
        held,
        violations,
        cancel,
        race_rate,
        race_quota,
        race_namespace,
        race_shared_namespace,
        *device_races.HANDLERS,
        *submission_races.HANDLERS,
        *projection.HANDLERS,
    )
}


def _answered(handler: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call a handler; call it again if a test closed the database connection."""
    from django.db import InterfaceError, OperationalError, connection

    for _ in range(20):
        try:
            return handler(**arguments)
        except (OperationalError, InterfaceError):
            connection.close()
            time.sleep(0.5)
    return handler(**arguments)


def main() -> None:
    import django

    django.setup()
    for line in sys.stdin:
        request = json.loads(line)
        answer = _answered(HANDLERS[request.pop("do")], request)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
