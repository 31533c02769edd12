"""The report endpoint of node agents: authentication by node, order of messages, and the response."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import time_machine

from hetsched.access.tokens import create_token
from hetsched.contracts.messages.agent_message import MOST_MESSAGE_BYTES, AgentMessage, digest_of
from hetsched.contracts.messages.agent_report import (
    AgentReport,
    MachineCard,
    MachineIsa,
    MachineUsage,
    MachineZone,
)
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.inventory.agent_messages import apply_samples
from hetsched.inventory.models import Cluster, Node
from hetsched.inventory.models.node_facts import NodeFacts
from hetsched.journal.audit import SYSTEM
from hetsched.placement.actions import import_cluster
from hetsched.placement.signed_grants import agent_key
from tests.builders import a_node

from .conftest import Api

ISA = MachineIsa("x86", "x86-64-v3+aes", level="x86-64-v3", features=("aes",))
REPORT = AgentReport("n1", ISA, (MachineZone(0, "0-3", 16384), MachineZone(1, "4-7", 16384)), (), None, agent="1.0")


def message(report: AgentReport | None = REPORT, *, sequence: int = 1, **more: Any) -> AgentMessage:
    stated = {"node": "n1", "instance": "a", "started_at": "2026-11-21T10:00:00Z"}
    digest = digest_of(report if report is not None else REPORT)
    return AgentMessage(**{**stated, "sequence": sequence, "digest": digest, "report": report, **more})


@pytest.fixture
def agent(api: Callable[..., Api], settings: Any) -> Api:
    """Return the agent of node n1 of cluster lab."""
    settings.HETSCHED_AGENT_PAUSE_MILLIS = 0
    settings.SECRET_KEY_GIVEN = settings.HETSCHED_AGENT_KEYS_OVER_HTTP = True
    return api("agent")


def refused(agent: Api, body: Any) -> tuple[int, str]:
    answer = agent("POST", "agent/reports/", body)
    return answer.status_code, answer.json()["code"]


def test_report_becomes_facts_of_the_node(agent: Api, cluster: Cluster, operator: Api) -> None:
    answer = agent("POST", "agent/reports/", message(), status=200).json()
    key = agent_key("lab", "n1")
    assert key is not None
    assert (answer["cluster"], answer["node"], urlsafe_b64decode(answer["key"])) == ("lab", "n1", key)
    assert (answer["reportWithinSeconds"], answer["allocations"], answer["problems"]) == (30, [], [])
    isa = operator.get("nodes/n1/isa/")
    assert (isa["native"], isa["origin"]["source"].split(":")[0]) == ("x86-64-v3+aes", "agent")
    assert [zone["cpus"] for zone in operator.get("nodes/n1/numa/")["zones"]] == ["0-3", "4-7"]


def test_agent_cannot_report_for_another_node(agent: Api, cluster: Cluster) -> None:
    report = msgspec.structs.replace(REPORT, node="n2")
    assert refused(agent, message(report, node="n2")) == (403, "NodeNotYours")
    assert refused(agent, message(report)) == (400, "ReportMalformed")  # in the agent's own message, about another node
    assert not NodeFacts.objects.exists()


def test_nodes_of_two_clusters_with_one_name_are_distinct(agent: Api, cluster: Cluster, settings: Any) -> None:
    other = Api(create_token(role="agent", name="x", cluster="elsewhere", node="n1")[1])
    assert refused(other, message()) == (404, "NotFound")
    unknown = Api(create_token(role="agent", name="x", cluster="lab", node="n9")[1])
    assert refused(unknown, message(msgspec.structs.replace(REPORT, node="n9"), node="n9")) == (404, "NodeUnknown")


@pytest.mark.parametrize("token", ["eyJh.eyJz.c2ln", "x" * 20_000 + ".a.b", "Not.A/Token.x", "abcd.efgh"])
def test_unverified_node_token_is_rejected(cluster: Cluster, token: str) -> None:
    assert refused(Api(token), message()) == (401, "TokenInvalid")


def test_unchanged_report_is_confirmed_without_a_write(agent: Api, cluster: Cluster) -> None:
    agent("POST", "agent/reports/", message(), status=200)
    before = Cluster.objects.get().revision
    same = agent("POST", "agent/reports/", message(None, sequence=2, usage=MachineUsage({"cpu": 500})), status=200)
    again = agent("POST", "agent/reports/", message(sequence=3), status=200)
    assert same.json()["problems"] == again.json()["problems"] == []
    assert Cluster.objects.get().revision == before
    row = NodeFacts.objects.get()
    assert row.usage is not None
    assert (row.sequence, row.usage.amounts) == (3, {"cpu": 500})


def test_report_with_unknown_fields_is_confirmed_by_its_own_digest(agent: Api, cluster: Cluster) -> None:
    digest = "digest of a report with a field that the server does not know"
    agent("POST", "agent/reports/", message(digest=digest), status=200)
    heartbeat = agent("POST", "agent/reports/", message(None, sequence=2, digest=digest), status=200).json()
    assert heartbeat["problems"] == []


def test_unknown_digest_requests_a_full_report(agent: Api, cluster: Cluster) -> None:
    first = agent("POST", "agent/reports/", message(None), status=200).json()
    assert [problem["code"] for problem in first["problems"]] == ["ReportWanted"]
    agent("POST", "agent/reports/", message(sequence=2), status=200)
    other = agent("POST", "agent/reports/", message(None, sequence=3, digest="other"), status=200).json()
    assert [problem["code"] for problem in other["problems"]] == ["ReportWanted"]


def test_messages_count_in_order_and_once(agent: Api, cluster: Cluster) -> None:
    agent("POST", "agent/reports/", message(sequence=5), status=200)
    less = msgspec.structs.replace(REPORT, zones=(MachineZone(0, "0-1", 16384),))
    assert refused(agent, message(less, sequence=4)) == (409, "ReportOutOfOrder")
    agent("POST", "agent/reports/", message(less, sequence=5), status=200)  # the same response, not processed again
    assert Node.objects.get(name="n1").report.numa.zones[0].cpus == "0-3"


def test_agent_that_started_later_wins(agent: Api, cluster: Cluster) -> None:
    later = {"instance": "b", "started_at": "2026-11-21T10:00:05Z"}
    agent("POST", "agent/reports/", message(sequence=70), status=200)
    agent("POST", "agent/reports/", message(sequence=1, **later), status=200)
    assert refused(agent, message(sequence=71)) == (409, "AgentSuperseded")


def test_too_many_messages_are_braked(agent: Api, cluster: Cluster, settings: Any) -> None:
    settings.HETSCHED_AGENT_PAUSE_MILLIS = 500
    with time_machine.travel("2026-11-21T12:00:00Z", tick=False) as clock:
        agent("POST", "agent/reports/", message(), status=200)
        assert refused(agent, message(sequence=2)) == (429, "ReportTooSoon")
        clock.shift(0.5)
        agent("POST", "agent/reports/", message(sequence=2), status=200)


def test_invalid_start_time_is_rejected(agent: Api, cluster: Cluster) -> None:
    assert refused(agent, message(started_at="2999-01-01T00:00:00Z")) == (400, "ReportMalformed")
    assert refused(agent, message(started_at="yesterday")) == (400, "ReportMalformed")


@pytest.mark.parametrize("more", [{"sequence": 2**63}, {"sequence": 0}, {"started_at": "0001-01-01T00:00:00+10:00"}])
def test_impossible_numbers_and_times_are_rejected(agent: Api, cluster: Cluster, more: dict[str, Any]) -> None:
    assert refused(agent, message(**more)) == (400, "ReportMalformed")


@pytest.mark.parametrize("observed_at", ["2999-01-01T00:00:00Z", "2026-11-21T12:00:31Z", "soon", ""])
@pytest.mark.parametrize("report", [REPORT, None])
def test_sample_time_is_capped_at_the_message_time(
    agent: Api, cluster: Cluster, observed_at: str, report: AgentReport | None
) -> None:
    # The newest sample of a cluster determines which samples are too old: one from the future would make all others
    # stale.
    with time_machine.travel("2026-11-21T12:00:00Z", tick=False):
        agent("POST", "agent/reports/", message(), status=200)
        usage = MachineUsage({"cpu": 500}, observed_at=observed_at)
        agent("POST", "agent/reports/", message(report, sequence=2, usage=usage), status=200)
        apply_samples(cluster.pk)
    sample = Node.objects.get(name="n1").report.usage
    assert (sample.amounts, sample.observed_at) == ({"cpu": 500}, "2026-11-21T12:00:00Z")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "BodyMalformed"),
        (msgspec.json.encode(message(instance="a\0")), 400, "TextHasNul"),
        (b"[]", 400, "BodyInvalid"),
        (b'{"node": 1}', 400, "BodyInvalid"),
        (b'{"x": ' + b"[" * 100_000, 400, "BodyMalformed"),
        (b'{"node": "n1", "x": "' + b"a" * MOST_MESSAGE_BYTES + b'"}', 413, "BodyTooLarge"),
    ],
)
def test_unreadable_report_is_rejected(agent: Api, cluster: Cluster, body: bytes, status: int, code: str) -> None:
    assert refused(agent, body) == (status, code)


def test_hint_for_a_large_report_names_no_setting(agent: Api, cluster: Cluster) -> None:
    body = b'{"x": "' + b"a" * MOST_MESSAGE_BYTES + b'"}'
    problem = agent("POST", "agent/reports/", body, kind="application/json", status=413).json()
    assert problem["hint"] == "Send a shorter report; this limit is fixed"


@pytest.mark.parametrize("body", [b"{", b"\xff", b'{"x": ' + b"[" * 100_000])
def test_non_json_report_is_rejected_with_reason_and_hint(agent: Api, cluster: Cluster, body: bytes) -> None:
    problem = agent("POST", "agent/reports/", body, kind="application/json", status=400).json()
    assert problem["code"] == "BodyMalformed"
    assert problem["detail"].startswith("the text is not valid JSON: ")
    assert problem["hint"] == "Send one JSON document in UTF-8"


@pytest.mark.parametrize("spelt", ["16384.0", "1.6384e4"])
def test_whole_number_may_be_a_float(agent: Api, cluster: Cluster, spelt: str) -> None:
    body = msgspec.json.encode(message()).replace(b'"memoryMiB":16384', b'"memoryMiB":' + spelt.encode())
    assert spelt.encode() in body
    agent("POST", "agent/reports/", body, status=200)
    report = NodeFacts.objects.get().reported
    assert [zone.memory_mib for zone in report.zones] == [16384, 16384]


def test_missing_secret_is_reported_and_nothing_is_signed(
    api: Callable[..., Api], cluster: Cluster, settings: Any
) -> None:
    settings.SECRET_KEY_GIVEN = False
    answer = api("agent")("POST", "agent/reports/", message(), status=200).json()
    assert answer["key"] == ""
    assert [problem["code"] for problem in answer["problems"]] == ["NotSigned"]


def test_key_is_withheld_over_plain_http(agent: Api, cluster: Cluster, settings: Any) -> None:
    settings.HETSCHED_AGENT_KEYS_OVER_HTTP = False
    answered = agent("POST", "agent/reports/", message(), status=200).json()
    assert answered["key"] == ""
    assert [problem["code"] for problem in answered["problems"]] == ["KeyWithheld"]
    body = msgspec.json.encode(message(sequence=2))
    secure = agent.client.post("/api/v1/agent/reports/", body, content_type="application/json", secure=True).json()
    assert urlsafe_b64decode(secure["key"]) == agent_key("lab", "n1")
    assert secure["problems"] == []


def test_added_gpus_are_named_as_not_accepted(agent: Api, cluster: Cluster) -> None:
    card = MachineCard(0, "GPU-a", "A100-SXM4-40GB", 40960, zone=0, healthy=True)
    with_one = msgspec.structs.replace(REPORT, gpus=(card,))
    with_two = msgspec.structs.replace(REPORT, gpus=(card, msgspec.structs.replace(card, index=1, uuid="GPU-b")))
    agent("POST", "agent/reports/", message(with_one), status=200)
    answer = agent("POST", "agent/reports/", message(with_two, sequence=2), status=200).json()
    assert [problem["code"] for problem in answer["problems"]] == ["FactQuarantined"]
    assert [held.uuid for held in Node.objects.get(name="n1").report.gpus] == ["GPU-a"]


def test_reports_survive_another_file_import(agent: Api, cluster: Cluster) -> None:
    agent("POST", "agent/reports/", message(), status=200)
    nodes = (a_node("n1").build(), a_node("n2").gpus(2).build())
    import_cluster(ClusterContent(nodes=nodes), name="lab", actor=SYSTEM)
    assert Node.objects.get(name="n1").report.isa.native == "x86-64-v3+aes"
