"""Node facts from a JSON document and from Prometheus: validated, and grouped by node.

The responses are faked. The guard of outbound calls has its own tests, and tests/system uses a real Prometheus.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import promql_parser
import pytest

from hetsched.adapters.collectors import http_json
from hetsched.adapters.collectors.facts import zone_of
from hetsched.adapters.collectors.node_names import Naming
from hetsched.adapters.collectors.prometheus_load import PrometheusLoad
from hetsched.adapters.collectors.registry import build, load_collectors
from hetsched.adapters.collectors.requests import CollectorClient, SourceError
from hetsched.adapters.http.outbound import AllowedHosts, OutboundError, OutboundResponse
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.collected import Collected, NodeAlias
from hetsched.contracts.objects.node_report import PowerReport
from hetsched.contracts.units import CPU, DISK_MBPS, MEMORY, NETWORK_MBPS

NODES = [NodeAlias("n1", ("10.0.0.1",)), NodeAlias("n2.example", ("10.0.0.2", "fd00::2")), NodeAlias("n3")]
NOW = 1_795_000_000.0


class Answers(CollectorClient):
    """A client with fixed responses: one document, or one for each query."""

    def __init__(self, answer: Callable[[str], Any]) -> None:
        super().__init__(AllowedHosts())
        self.answer = answer
        self.asked: list[str] = []

    def json(self, url: str, form: Any = None) -> Any:
        self.asked.append(url if form is None else form["query"])
        return self.answer(self.asked[-1])


def vector(*rows: tuple[dict[str, str], float | str]) -> Any:
    result = [{"metric": labels, "value": [NOW, str(value)]} for labels, value in rows]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


def collected(kind: str, params: dict[str, Any], answer: Callable[[str], Any]) -> Collected:
    return build(kind, params).collect(Answers(answer), NODES, NOW)


# -- load --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exporter", ["node-exporter", "kubelet"])
@pytest.mark.parametrize("more", [{}, {"selector": 'job="a",cluster!~"b|c"', "node_label": "host"}])
def test_every_shipped_query_is_promql(exporter: str, more: dict[str, str]) -> None:
    made = build("prometheus-load", {"url": "http://p:9090", "exporter": exporter, **more})
    assert isinstance(made, PrometheusLoad)
    queries = made.queries()
    assert set(queries) == {"time", CPU, MEMORY, NETWORK_MBPS, DISK_MBPS}
    for text in queries.values():
        promql_parser.parse(text)
        assert "%" not in text


def test_one_query_per_resource_for_any_number_of_nodes() -> None:
    ask = Answers(lambda query: vector())
    build("prometheus-load", {"url": "http://p:9090"}).collect(ask, NODES, NOW)
    assert len(ask.asked) == 5


def test_samples_are_converted_with_the_age_of_their_scrape() -> None:
    at = {"instance": "10.0.0.1:9100"}

    def answer(query: str) -> Any:
        if "timestamp" in query:
            return vector((at, NOW - 7), ({"node": "n2.example"}, NOW - 8))
        if "cpu" in query:
            return vector((at, 1.2345), ({"node": "n2.example"}, "NaN"), ({"node": "absent"}, 3))
        if "Mem" in query:
            return vector((at, 1000.4), ({"job": "a", **at}, 1200))
        # 12 500 000 bytes/s * 8 / 10^6 = 100 Mbit/s; / 10^6 = 12.5 MB/s, rounded to the even 12
        return vector((at, 12_500_000))

    found = collected("prometheus-load", {"url": "http://p:9090"}, answer)
    (node,) = found.findings
    assert node.node == "n1"
    assert node.usage == {CPU: 1234, MEMORY: 1200, NETWORK_MBPS: 100, DISK_MBPS: 12}
    assert node.observed_at.startswith("2026-11-")
    assert found.problems == ()


def test_node_without_its_exporter_has_no_sample() -> None:
    found = collected("prometheus-load", {"url": "http://p:9090"}, lambda query: vector(
        *([] if "timestamp" in query else [({"node": "n1"}, 1)])
    ))  # fmt: skip
    assert found.findings == ()


def test_failing_resource_is_a_problem_and_the_others_are_kept() -> None:
    def answer(query: str) -> Any:
        if "network" in query:
            raise SourceError("Answer422", "p:9090 responded with status 422")
        return vector(({"node": "n1"}, NOW))

    found = collected("prometheus-load", {"url": "http://p:9090", "disk_query": "-"}, answer)
    assert set(found.findings[0].usage) == {CPU, MEMORY}
    assert found.problems == (f"{NETWORK_MBPS}: p:9090 responded with status 422",)


def test_series_of_other_clusters_are_reported() -> None:
    found = collected("prometheus-load", {"url": "http://p:9090"}, lambda query: vector(({"node": "x"}, NOW)))
    assert found.problems == ("none of the 1 series matches a node of this cluster",)


@pytest.mark.parametrize(
    ("params", "place"),
    [
        ({}, "params.url"),
        ({"url": "http://p", "selector": 'job="a"} or vector(1) #'}, "params.selector"),
        ({"url": "http://p", "node_label": "a) (b"}, "params.node_label"),
        ({"url": "http://p", "time_query": "-"}, "params.time_query"),
        ({"url": "http://p", "window_seconds": 0}, "params"),
        ({"url": "http://p", "colour": "red"}, "params"),
    ],
)
def test_parameters_are_checked(params: dict[str, Any], place: str) -> None:
    with pytest.raises(InputError) as refused:
        build("prometheus-load", params)
    assert (refused.value.code, refused.value.place) == ("CollectorParamInvalid", place)


@pytest.mark.parametrize(
    "answer",
    [None, [], {}, {"status": "error"}, {"status": "success", "data": {"resultType": "matrix", "result": []}},
     {"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}, "value": "1"}]}}],
)  # fmt: skip
def test_invalid_prometheus_response_fails(answer: Any) -> None:
    with pytest.raises(SourceError) as failed:
        collected("prometheus-load", {"url": "http://p:9090"}, lambda _: answer)
    assert failed.value.code == "AnswerNotPrometheus"


@pytest.mark.parametrize(
    ("labels", "node"),
    [
        ({"node": "n1"}, "n1"),
        ({"nodename": "n2"}, "n2.example"),  # machines identify themselves by the first part
        ({"instance": "10.0.0.2:9100"}, "n2.example"),
        ({"instance": "[fd00::2]:9100"}, "n2.example"),
        ({"instance": "fd00::2"}, "n2.example"),
        ({"instance": "n3:9100"}, "n3"),
        ({"node": "elsewhere", "instance": "n1:9100"}, "n1"),
        ({"instance": "10.0.0.9:9100"}, None),
        ({"host": "n1"}, None),
        ({}, None),
    ],
)
def test_series_name_their_node(labels: dict[str, str], node: str | None) -> None:
    assert Naming(NODES).of_labels(labels) == node


def test_ambiguous_short_name_matches_no_node() -> None:
    assert Naming([NodeAlias("a.one"), NodeAlias("a.two")]).of("a") is None


# -- facts -------------------------------------------------------------------------------------------------------------


RACKS = {
    "racks": [
        {"host": "n1", "power": {"state": "PSU_DOWN", "spare": 120.9}, "numa": {"0": "8400m", "1": 21.6}},
        {"host": "n2", "power": {"state": "purple", "spare": -1}, "seen": 1_795_000_000},
        {"host": "n3", "power": {"state": "on"}, "seen": "yesterday"},
        {"host": "elsewhere", "power": {"state": "on"}},
    ]
}
PATHS = {
    "url": "https://racks.example/v1", "nodes": "$.racks", "name": "host", "power_state": "$.power.state",
    "headroom_watts": 'power["spare"]', "zones": "$.numa", "observed_at": "$.seen", "states": {"PSU_DOWN": "off"},
}  # fmt: skip


def test_facts_are_read_at_their_paths_and_wrong_ones_are_left_out() -> None:
    found = collected("http-json", PATHS, lambda _: RACKS)
    first, second, third = found.findings
    assert (first.node, first.power, first.zones) == ("n1", PowerReport("off", 120), {"0": 8400, "1": 21600})
    assert (second.node, second.power, second.observed_at) == ("n2.example", None, "2026-11-18T11:06:40Z")
    assert (third.node, third.power) == ("n3", PowerReport("on"))
    assert [problem.partition(":")[0] for problem in found.problems] == ["n2.example", "n2.example", "n3"]


def test_nodes_and_zones_may_be_lists_or_mappings() -> None:
    paths = {"url": "https://x", "nodes": "$", "zones": "$.z", "zone_name": "id", "offline_capacity": "cpu"}
    document = {"n1": {"z": [{"id": 0, "cpu": 2}, {"id": 1}, "odd"]}}
    (node,) = collected("http-json", paths, lambda _: document).findings
    assert node.zones == {"0": 2000}


@pytest.mark.parametrize("document", [None, 3, "text", {"racks": 3}, {"racks": None}, []])
def test_document_without_nodes_fails(document: Any) -> None:
    with pytest.raises(SourceError):
        collected("http-json", PATHS, lambda _: document)


def test_facts_out_of_prometheus() -> None:
    params = {"url": "http://p:9090", "offline_capacity": "left", "power_state": "state", "headroom_watts": "watts"}
    answers = {
        "left": vector(({"node": "n1", "zone": "node-0"}, 8.4), ({"node": "n1"}, 3)),
        "state": vector(({"node": "n1", "state": "capped"}, 1), ({"node": "n1", "state": "on"}, 0)),
        "watts": vector(({"node": "n3"}, 99.9)),
    }
    node, other = collected("prometheus-facts", params, answers.__getitem__).findings
    assert (node.zones, node.power) == ({"node-0": 8400}, PowerReport("capped"))
    assert (other.node, other.power) == ("n3", PowerReport(None, 99))


@pytest.mark.parametrize(
    ("text", "zone"), [("node-1", "node-1"), ("1", "node-1"), ("node1", "node-1"), ("2", None), ("", None)]
)
def test_zones_are_meant_by_name_or_number(text: str, zone: str | None) -> None:
    assert zone_of(text, ("node-0", "node-1")) == zone


# -- paths -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value"),
    [("$", {"a": [{"b c": 1}]}), ("", {"a": [{"b c": 1}]}), ("$.a[0]['b c']", 1), ('a[-1]["b c"]', 1),
     ("$.a[1]", http_json.MISSING), ("$.a.b", http_json.MISSING), ("$.z", http_json.MISSING)],
)  # fmt: skip
def test_path_finds_one_value_or_none(path: str, value: Any) -> None:
    assert http_json.find({"a": [{"b c": 1}]}, path) == value


@pytest.mark.parametrize(
    "path", ["$..a", "$.*", "$[*]", "$[?(@.a)]", "$.a[0:2]", "$.a()", "__import__('os')", "$.a b", "a" + ".b" * 20]
)
def test_invalid_path_is_rejected(path: str) -> None:
    with pytest.raises(InputError) as refused:
        http_json.parse(path)
    assert refused.value.code == "JsonPathMalformed"


# -- answers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind", "body", "code"),
    [
        (302, "text/html", b"", "Answer302"),
        (500, "application/json", b"", "Answer500"),
        (204, "application/json", b"", "Answer204"),
        (200, "text/html", b"{}", "AnswerNotJson"),
        (200, "", b"{}", "AnswerNotJson"),
        (200, "application/json", b"<script>", "AnswerNotJson"),
        (200, "application/json", b"[" * 100_000, "AnswerNotJson"),
        (200, "application/json", b'"\xff"', "AnswerNotJson"),
    ],
)
def test_non_json_responses_are_rejected(
    monkeypatch: pytest.MonkeyPatch, status: int, kind: str, body: bytes, code: str
) -> None:
    answer = OutboundResponse(status, {"content-type": kind}, body)
    monkeypatch.setattr("hetsched.adapters.http.outbound.call", lambda *_, **__: answer)
    with pytest.raises(SourceError) as failed:
        CollectorClient(AllowedHosts()).json("https://racks.example/")
    assert failed.value.code == code
    assert "script" not in failed.value.message


def test_token_is_sent_and_a_rejection_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []

    def refuse(url: str, allowed: AllowedHosts, **more: Any) -> OutboundResponse:
        sent.append(more["headers"])
        raise OutboundError("HostUnreachable", "connection refused")

    monkeypatch.setattr("hetsched.adapters.http.outbound.call", refuse)
    with pytest.raises(SourceError) as failed:
        CollectorClient(AllowedHosts(), token="canary").json("https://racks.example/", {"query": "up"})
    assert failed.value.code == "HostUnreachable"
    assert sent[0]["Authorization"] == "Bearer canary"


def test_collectors_describe_themselves() -> None:
    known = load_collectors()
    assert {"http-json", "prometheus-facts", "prometheus-load"} <= known.keys()
    described = known["prometheus-load"].describe()
    assert described["load"] is True
    assert described["params"]["properties"]["url"]["title"] == "Address"
    with pytest.raises(InputError) as refused:
        build("carrier-pigeon", {})
    assert refused.value.code == "CollectorUnknown"
