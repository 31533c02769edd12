"""The whole production trace as one batch over REST -> Celery -> database -> push has the placements of `simulate`."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlencode

import httpx
import msgspec
import pytest
from websockets.sync.client import ClientConnection, connect

from hetsched.journal.publish import merge
from tests.system.databases import copy_prepared_sqlite
from tests.system.processes import ROOT, plain_environment, python
from tests.system.test_standalone import Standalone, standalone

pytestmark = pytest.mark.timeout(600)
TRACE = ROOT.parent / "shared" / "data" / "openb"
NODES, PODS = TRACE / "openb_node_list_all_node.csv", TRACE / "openb_pod_list_default.csv"
needs_trace = pytest.mark.skipif(not PODS.is_file(), reason="the openb trace is not next to this checkout")
UNDECIDED = "pending"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    data = tmp_path_factory.mktemp("openb") / "data"
    data.mkdir(0o700)
    copy_prepared_sqlite(data)
    with standalone(data, "--no-demo") as run:
        run.wait_until_ready()
        yield run


@pytest.fixture(scope="module")
def token(server: Standalone) -> str:
    env = plain_environment() | {"HETSCHED_DATA": str(server.data)}
    words = python("-m", "hetsched.cli", "token", "create", "--role", "operator")
    return subprocess.run(words, env=env, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(scope="module")
def api(server: Standalone, token: str) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=f"{server.url}/api/v1/", headers=headers, timeout=120) as client:
        yield client


class Watcher:
    """A live client that keeps its documents current, and fails on a gap."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.documents: dict[str, Any] = {}
        self.revisions: dict[str, int] = {}

    def listen(self, *topics: str) -> None:
        self.socket.send(json.dumps({"action": "subscribe", "topics": topics}))
        while not set(topics) <= self.documents.keys():
            self.receive()

    def receive(self) -> None:
        message = msgspec.json.decode(self.socket.recv(timeout=60))
        topic, revision = message["topic"], message["revision"]
        if message["type"] == "snapshot":
            self.documents[topic] = message["data"]
        else:
            assert message["type"] == "delta", message
            assert revision == self.revisions[topic] + 1
            self.documents[topic] = merge(self.documents[topic], message["data"])
        self.revisions[topic] = revision


def pages(api: httpx.Client, address: str, **query: str) -> Iterator[dict[str, Any]]:
    following: str | None = f"/api/v1/{address}?{urlencode({'limit': 1000, **query})}"
    while following:
        page = api.get(following.removeprefix("/api/v1/")).raise_for_status().json()
        yield from page["items"]
        following = page["next"]


def simulated() -> dict[str, str | None]:
    words = python("-m", "hetsched.cli", "simulate", "--cluster", str(NODES), "--workload", str(PODS), "-o", "json")
    printed = subprocess.run(words, env=plain_environment(), cwd=ROOT, capture_output=True, check=True).stdout
    return {item["pod"]: item["node"] for item in json.loads(printed)["results"][0]["placements"]}


@needs_trace
def test_batch_equals_the_simulation(server: Standalone, api: httpx.Client, token: str) -> None:
    api.post("clusters/", json={"name": "openb", "reason": "trace"}).raise_for_status()
    csv = {"Content-Type": "text/csv"}
    imported = api.post("clusters/openb/import/?reason=trace", content=NODES.read_bytes(), headers=csv)
    assert imported.raise_for_status().json()["nodeCount"] == 1523
    address = f"{server.url.replace('http', 'ws', 1)}/ws/live/"
    with connect(address, subprotocols=[f"bearer.{token}"], max_size=None) as socket:  # type: ignore[list-item]
        watcher = Watcher(socket)
        watcher.listen("cluster:openb")
        accepted = api.post("workloads/?cluster=openb", content=PODS.read_bytes(), headers=csv).raise_for_status()
        assert (accepted.status_code, len(accepted.json()["pods"])) == (202, 8152)
        workload = accepted.json()["id"]
        watcher.listen(topic := f"workload:{workload}")
        while watcher.documents[topic]["state"] == UNDECIDED:
            watcher.receive()
        pushed = {name: pod.get("node") for name, pod in watcher.documents[topic]["pods"].items()}
    state = UNDECIDED
    while state == UNDECIDED:
        state = api.get(f"workloads/{workload}/", params={"wait": 30}).raise_for_status().json()["state"]
    kept = {row["pod"]: row["node"] for row in pages(api, f"workloads/{workload}/pods/")}
    expected = simulated()
    assert kept == expected
    assert pushed == expected
    listed = list(pages(api, "decisions/", workload=workload))
    assert len(listed) == len(expected)
    assert {row["pod"]: row["node"] for row in listed} == expected
    # The nodes hold exactly the placed pods.
    assert sum(node["pods"] for node in pages(api, "nodes/", cluster="openb")) == sum(
        node is not None for node in expected.values()
    )


POD = """\
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec: {containers: [{name: main, resources: {requests: {cpu: 10m}}}]}
"""


def _ensure_cluster(api: httpx.Client) -> str:
    node = (
        "apiVersion: v1\nkind: Node\nmetadata: {name: a}\nstatus: {allocatable: {cpu: '64', memory: 64Gi, pods: '110'}}"
    )
    if api.get("clusters/small/").status_code == 404:
        api.post("clusters/", json={"name": "small", "reason": "x"}).raise_for_status()
        api.post("clusters/small/import/", json={"manifest": node, "reason": "x"}).raise_for_status()
    return "small"


def test_concurrent_requests_with_one_key_create_one_workload(api: httpx.Client) -> None:
    cluster = _ensure_cluster(api)

    def submit(_: int) -> httpx.Response:
        body = {"manifest": POD % "raced", "cluster": cluster}
        while (answer := api.post("workloads/", json=body, headers={"Idempotency-Key": "race"})).status_code == 429:
            # one request has more submissions than a busy machine accepts in time
            time.sleep(int(answer.headers["Retry-After"]))
        return answer

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(submit, range(32)))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.content for answer in answers}) == 1
    assert sum("Idempotency-Replayed" not in answer.headers for answer in answers) == 1


def test_waiting_ends_with_the_decision(api: httpx.Client) -> None:
    body = {"manifest": POD % "waited", "cluster": _ensure_cluster(api)}
    workload = api.post("workloads/", json=body).raise_for_status().json()["id"]
    shown = api.get(f"workloads/{workload}/", params={"wait": 60}).raise_for_status().json()
    assert shown["state"] == "placed"
    assert shown["pods"][0]["node"] == "a"
