"""A stock kube-scheduler with the extender makes hetsched's own placements, and preempts the pods that it names.

Real here: etcd, kube-apiserver, kube-scheduler, and the product's own processes with the extender.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from hetsched.adapters.kubernetes.api import Api, Resource
from hetsched.adapters.kubernetes.resources import LEASES, NODE_GPUS, NODES, PODS, TOPOLOGIES
from hetsched.adapters.objects.allocation import parse_allocation
from hetsched.adapters.objects.documents import Document
from hetsched.adapters.objects.fields import FieldView
from hetsched.adapters.objects.manifests import read_content
from hetsched.adapters.objects.pods import PodReader, ReferencedObjects
from hetsched.contracts.objects.allocation import Allocation
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.builtin_policies import BUILTIN, DEFAULT
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import compile_policy
from hetsched.engine.framework.registry import load_registry
from tests.kube import extended, kinds, mixed_fleet
from tests.kube.control_plane import ControlPlane, free_port
from tests.kube.kubelet import Kubelet
from tests.kube.scene import make, make_node, make_pod, pod_of
from tests.system.processes import ROOT, Process, children_of, plain_environment, python, wait_until

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver", "kube-scheduler"), pytest.mark.timeout(400)]
FLEET = 20
LONG = 120


@pytest.fixture(scope="module")
def server(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """Run `hetsched scheduler --extender` with all CRDs installed; yield the port of the extender and the folder."""
    folder = tmp_path_factory.mktemp("extender")
    extended.certificates(folder / "certificates")
    with kinds.installed(plane, [*kinds.ours(), *kinds.theirs()]), hetsched(plane, folder) as port:
        yield port, folder


@pytest.fixture
def port(server: tuple[int, Path], tmp_path: Path) -> int:
    """Return the port of the extender; the certificates of its clients are in the folder of the test."""
    port, folder = server
    shutil.copytree(folder / "certificates", tmp_path / "certificates")
    (tmp_path / "data").symlink_to(folder / "data")
    return port


@contextmanager
def hetsched(plane: ControlPlane, folder: Path) -> Iterator[int]:
    """Run `hetsched scheduler --extender`; yield the port of the extender."""
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(json.dumps(plane.kubeconfig()))
    port = free_port()
    env = plain_environment() | {
        "HETSCHED_EXTENDER_CLIENTS": "kube-scheduler=live",
        "HETSCHED_EXTENDER_CERTIFICATES": str(folder / "certificates" / "server"),
        "HETSCHED_EXTENDER_PORT": str(port),
        "HETSCHED_EXTENDER_PROBE_PORT": "0",
        # A busy machine is slow; this test checks placements, not speed.
        "HETSCHED_EXTENDER_SECONDS": "30",
    }
    words = ("scheduler", "--no-web", "--extender", f"--data={folder / 'data'}", "--name=live")
    command = python("-m", "hetsched.cli", *words, f"--kubeconfig={kubeconfig}")
    run = Process(command, env=env, log=folder / "hetsched.log", cwd=ROOT)
    try:
        wait_until(lambda: "is running" in run.said() or not run.running, what=run.said, seconds=LONG)
        assert run.running, run.said()
        yield port
    finally:
        below = children_of(run.popen.pid)
        run.stop(signal.SIGINT)
        for pid in below:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def logs(folder: Path) -> str:
    files = [*folder.glob("data/logs/extender.log"), *folder.glob("data/logs/watch.log"), folder / "kube-scheduler.log"]
    return "\n".join(f"--- {log}\n{log.read_text()[-3000:]}" for log in files if log.exists())


def wanted() -> list[dict[str, Any]]:
    """Return pods of all kinds that one cycle decides: 22 anywhere, 8 RISC-V, 7 with GPUs, 3 with CPUs, 4 pinned."""
    left_out = {"gang", "impossible"}
    pods = [pod for pod in mixed_fleet.pods(50, FLEET) if kind_of(pod["metadata"]["name"]) not in left_out]
    for pod in pods:
        pod["spec"]["schedulerName"] = extended.NAME
    return pods


def kind_of(name: str) -> str:
    return name.partition("-")[0]


def asked_for(log: Path) -> list[str]:
    """Return the pods in the order of kube-scheduler's last scheduling attempt for each."""
    found = re.findall(r'"Attempting to schedule pod" pod="default/([^"]+)"', log.read_text())
    return list(dict.fromkeys(reversed(found)))[::-1]


def decided_here(api: Api, pods: list[dict[str, Any]]) -> dict[str, tuple[str, Allocation]]:
    """Decide the same pods in the same order, in this process, with the nodes of the API server."""

    def documents(kind: Resource) -> list[Document]:
        return [
            Document(kind.plural, number, {**json.loads(body), "apiVersion": kind.api_version, "kind": kind.kind})
            for number, body in enumerate(api.list_all(kind)[0], start=1)
        ]

    content = read_content([*documents(NODES), *documents(NODE_GPUS), *documents(TOPOLOGIES)], workload=False)
    policy = compile_policy(BUILTIN[DEFAULT], load_registry())
    scheduler = Scheduler(ClusterState.of(content), policy)
    reader = PodReader(ReferencedObjects.of(content))
    found = {}
    for pod in pods:
        spec = reader.pod(FieldView(pod))
        assert spec is not None
        outcome = scheduler.schedule(spec)
        assert outcome.node is not None, spec.key
        found[spec.name] = (outcome.node, outcome.allocation)
    return found


def bound(api: Api) -> dict[str, dict[str, Any]]:
    """Return the bound pods by name."""
    pods = [json.loads(body) for body in api.list_all(PODS)[0]]
    return {pod["metadata"]["name"]: pod for pod in pods if pod["spec"].get("nodeName")}


def until_bound(api: Api, names: list[str], folder: Path) -> None:
    wait_until(
        lambda: set(names) <= set(bound(api)),
        what=lambda: f"bound: {sorted(bound(api))}\n{logs(folder)}",
        seconds=LONG,
    )


def test_placements_equal_those_of_our_own_cycle(api: Api, plane: ControlPlane, port: int, tmp_path: Path) -> None:
    """Nodes are passed by name, with the shipped account, and then as whole objects."""
    pods = {pod["metadata"]["name"]: pod for pod in wanted()}
    with extended.account(plane) as identity:
        mixed_fleet.create_fleet(api, FLEET)
        ways: tuple[dict[str, Any], ...] = ({"identity": identity}, {"nodeCacheCapable": False})
        for way, some in zip(ways, (list(pods)[::2], list(pods)[1::2]), strict=True):
            for name in some:
                api.send("POST", PODS.path(namespace="default"), json.dumps(pods[name]).encode())
            with extended.kube_scheduler(plane, tmp_path, port, httpTimeout="60s", **way) as log:
                until_bound(api, some, tmp_path)
        there = bound(api)
        nodes = [json.loads(body) for body in api.list_all(NODES)[0]]
        assert mixed_fleet.placement_violations(list(there.values()), nodes) == []
        expected = decided_here(api, [pods[name] for name in asked_for(log)])
        lock = LEASES.path(namespace="kube-system", name=extended.NAME)
        assert json.loads(api.get(lock))["spec"]["leaseTransitions"] == 0
        api.send("DELETE", lock)
    assert {name: pod["spec"]["nodeName"] for name, pod in there.items()} == {
        name: node for name, (node, _) in expected.items()
    }, logs(tmp_path)
    for name, (_, allocation) in expected.items():
        written = parse_allocation(there[name]["metadata"]["annotations"]["hetsched.io/allocation"])
        assert (written.gpus, written.zones) == (allocation.gpus, allocation.zones), name
    assert {"shared", "whole", "pinned", "riscv", "affine", "plain"} == {kind_of(name) for name in there}
    assert [line for line in log.read_text().splitlines() if "forbidden" in line] == []


@contextmanager
def flood(port: int, folder: Path) -> Iterator[list[int]]:
    """Keep opening connections until the block ends; yield the number of connections of each kind.

    The kinds: silent ones, begun handshakes and handshakes without a certificate, from many addresses and from the one
    of kube-scheduler; and verified connections whose request bodies arrive byte by byte.
    """
    ended, opened = threading.Event(), [0, 0, 0, 0]
    anonymous = ssl.create_default_context()
    anonymous.check_hostname, anonymous.verify_mode = False, ssl.CERT_NONE
    hello = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        anonymous.wrap_bio(ssl.MemoryBIO(), hello).do_handshake()
    client = extended_client(folder)

    def connect(kind: int, number: int) -> socket.socket:
        address = "127.0.0.1" if number % 2 else f"127.{1 + number // 60_000}.{number // 250 % 240}.{1 + number % 250}"
        there = socket.create_connection(("127.0.0.1", port), timeout=2, source_address=(address, 0))
        if kind == 0:
            return there
        if kind == 1:
            there.sendall(hello_bytes)
            return there
        if kind == 2:
            return anonymous.wrap_socket(there)
        body = client.wrap_socket(there, server_hostname="127.0.0.1")
        head = "POST /extender/filter HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 9000\r\n\r\n"
        body.sendall(head.encode())
        return body

    def run(kind: int) -> None:
        connections: list[socket.socket] = []
        while not ended.wait(0.5 if kind == 3 and len(connections) >= 140 else 0.005):
            with suppress(OSError):
                connections.append(connect(kind, opened[kind]))
                opened[kind] += 1
            for connection in connections if kind == 3 else ():
                with suppress(OSError):
                    connection.send(b" ")
            while len(connections) > 200:
                connections.pop(0).close()
        for connection in connections:
            connection.close()

    hello_bytes = hello.read()
    threads = [threading.Thread(target=run, args=(kind,)) for kind in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield opened
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def status_of_a_call(port: int, folder: Path) -> int:
    """Return the status of an invalid call on a new connection."""
    caller = http.client.HTTPSConnection("127.0.0.1", port, context=extended_client(folder), timeout=30)
    with closing(caller):
        caller.request("POST", "/extender/filter", b"[]", {"Content-Type": "application/json"})
        return caller.getresponse().status


def extended_client(folder: Path) -> ssl.SSLContext:
    """Return the TLS settings of kube-scheduler."""
    pair = folder / "certificates"
    context = ssl.create_default_context(cafile=str(pair / "server" / "ca.crt"))
    context.load_cert_chain(pair / "client" / "tls.crt", pair / "client" / "tls.key")
    return context


def test_connection_flood_does_not_block_kube_scheduler(
    api: Api, plane: ControlPlane, port: int, tmp_path: Path
) -> None:
    make_node(api, "n1", **{"kubernetes.io/arch": "amd64"})
    names = [f"p{number}" for number in range(6)]
    with flood(port, tmp_path) as opened:
        wait_until(lambda: opened[3] >= 140, what=lambda: f"a flood: {opened}", seconds=LONG)
        assert [status_of_a_call(port, tmp_path) for _ in range(20)] == [400] * 20  # each is answered
        with extended.kube_scheduler(plane, tmp_path, port, httpTimeout="30s") as log:
            for name in names:
                make_pod(api, name, schedulerName=extended.NAME)
                until_bound(api, [name], tmp_path)
    assert min(opened) >= 100, opened
    failed = [
        line for line in log.read_text().splitlines() if "extender" in line and ("EOF" in line or "reset" in line)
    ]
    assert failed == []


def conditions(api: Api, name: str) -> str:
    found = pod_of(api, name)["status"].get("conditions") or ()
    return " ".join(item.get("message", "") for item in found)


def test_missing_extender_follows_the_configured_ignorable_flag(api: Api, plane: ControlPlane, tmp_path: Path) -> None:
    extended.certificates(tmp_path / "certificates")
    make_node(api, "n1")
    make_pod(api, "first", schedulerName=extended.NAME)
    unused_port = free_port()
    with extended.kube_scheduler(plane, tmp_path, unused_port, ignorable=False):
        wait_until(lambda: "connection refused" in conditions(api, "first"), what=lambda: logs(tmp_path), seconds=LONG)
    assert "nodeName" not in pod_of(api, "first")["spec"]
    with extended.kube_scheduler(plane, tmp_path, unused_port, ignorable=True):
        wait_until(lambda: pod_of(api, "first")["spec"].get("nodeName"), what=lambda: logs(tmp_path), seconds=LONG)
    assert "hetsched.io/allocation" not in pod_of(api, "first")["metadata"].get("annotations", {})


def test_preemption_and_rejections_are_explained_to_kube_scheduler(
    api: Api, plane: ControlPlane, port: int, tmp_path: Path
) -> None:
    classes = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass")
    make_node(api, "n1", **{"kubernetes.io/arch": "amd64"})
    make(api, classes, "urgent", value=1000)
    try:
        with Kubelet(api), extended.kube_scheduler(plane, tmp_path, port, httpTimeout="60s"):
            # 3 + 3 of 8 CPUs are used; 4 more need one of these pods to be preempted.
            for name in ("a", "b"):
                make_pod(api, name, cpu="3", schedulerName=extended.NAME)
            until_bound(api, ["a", "b"], tmp_path)
            make_pod(api, "vector", schedulerName=extended.NAME, labels={"hetsched.io/isa": "rv64gcv"})
            wait_until(lambda: "rv64" in conditions(api, "vector"), what=lambda: logs(tmp_path), seconds=LONG)
            assert "0/1 nodes are available: 1 " in conditions(api, "vector")
            make_pod(api, "c", cpu="4", schedulerName=extended.NAME, priorityClassName="urgent")
            until_bound(api, ["c"], tmp_path)
        assert len(set(bound(api)) & {"a", "b"}) == 1
        assert "hetsched.io/allocation" in pod_of(api, "c")["metadata"]["annotations"]
    finally:
        api.send("DELETE", classes.path(name="urgent"))
