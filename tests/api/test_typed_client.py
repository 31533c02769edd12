"""The typed client against the OpenAPI document and the real views."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest

from hetsched.client import Client, Refused
from hetsched.client import documents as typed
from hetsched.inventory.models import Cluster

from .conftest import POD, Api

# Types whose names differ between server and client.
THERE = {
    "Decision": "DecisionDetail",
    "Workload": "WorkloadDetail",
    "ClusterRow": "ClusterDetail",
    "Hold": "HoldDetail",
}
KEPT_BY_THE_CLIENT = {"document", "replayed"}
TYPES = [
    kind
    for kind in vars(typed).values()
    if isinstance(kind, type) and issubclass(kind, typed.Part) and kind not in (typed.Part, typed.Answer)
]


@pytest.fixture
def api_client(operator: Api) -> Client:
    """Return a client whose requests go to the views of this process."""

    def handle(request: httpx.Request) -> httpx.Response:
        headers = {name: value for name, value in request.headers.items() if name.lower() != "host"}
        answer: Any = operator.client.generic(
            request.method, request.url.raw_path.decode(), request.content, headers.pop("content-type", "text/plain"),
            headers=headers,
        )  # fmt: skip
        return httpx.Response(answer.status_code, content=answer.content, headers=dict(answer.items()))

    return Client("http://hetsched.test", transport=httpx.MockTransport(handle), patience_seconds=0)


def test_server_describes_every_field_of_the_client(operator: Api) -> None:
    schemas = operator("GET", "schema", status=200).json()["components"]["schemas"]
    for kind in TYPES:
        described = schemas[THERE.get(kind.__name__, kind.__name__)]["properties"]
        read = {field.encode_name for field in msgspec.structs.fields(kind)} - KEPT_BY_THE_CLIENT
        assert read <= set(described), kind.__name__


def test_client_follows_a_submission_to_its_end(api_client: Client, cluster: Cluster) -> None:
    accepted = api_client.submit(POD, key="build-1", name="tests")
    again = api_client.submit(POD, key="build-1", name="tests")
    assert (accepted.replayed, again.replayed, again.id) == (False, True, accepted.id)
    with pytest.raises(Refused, match="IdempotencyKeyReused") as caught:
        api_client.submit(POD.replace("web", "other"), key="build-1")
    assert caught.value.status == 422
    found = api_client.workload(accepted.id)
    assert (found.name, found.state, [pod.pod for pod in found.pods]) == ("tests", "pending", ["default/web"])
    assert [row.id for row in api_client.workloads(name="tests")] == [accepted.id]
    assert [pod.pod for pod in api_client.pods(accepted.id)] == ["default/web"]
    assert [pod.pod for pod in api_client.queue()] == ["default/web"]
    assert api_client.wait(accepted.id, timeout_seconds=0).end.exit_code == 13
    assert api_client.cancel(accepted.id, "not needed").state == "cancelled"
    assert api_client.cancel(accepted.id, "said again").state == "cancelled"
    assert api_client.wait(accepted.id).end.exit_code == 14


def test_client_reads_the_fleet_and_runs_a_what_if(api_client: Client, cluster: Cluster) -> None:
    assert [cluster.name for cluster in api_client.clusters()] == ["lab"]
    assert [node.name for node in api_client.nodes(cluster="lab")] == ["n1", "n2"]
    answer = api_client.what_if(POD, cluster="lab", explain=True)
    assert answer.verdict.exit_code == 0
    assert answer.nodes
    assert not list(api_client.workloads())


def test_decisions_are_read_with_their_reasons(api_client: Client, decided: str) -> None:
    rows = {row.pod: row for row in api_client.decisions(workload=decided)}
    assert {pod: row.verdict.exit_code for pod, row in rows.items()} == {"default/web": 0, "default/big": 11}
    refused = api_client.decision(rows["default/big"].id, further=True, all_nodes=True)
    assert refused.nearest_fit is not None
    assert {node.name for node in refused.nodes} == {"n1", "n2"}
    why = api_client.why(refused.pod_id or 0, outlook=True)
    assert (why.pod, why.decision, why.outlook is not None) == ("default/big", refused.id, True)
    assert [pod.id for pod in api_client.workload(decided).pods if pod.pod == "default/big"] == [refused.pod_id]
