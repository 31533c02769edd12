"""Facts about racks and hosts from Prometheus: power, and the CPU that co-located load leaves in each zone.

Each fact has one query for the whole cluster; an empty query is skipped.
    offline capacity   cores, with a label that names the node and a label `zone`: the zone's name or number
    power state        1 for the current state of a node, with the labels of the node and `state`
    power headroom     watts that a node could draw in addition to its current draw
Facts are dated with the time of the evaluation.
Source: cassini (Tencent 2022), in which a master adds facts that a node cannot know; the origin of these facts is not
published.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated

import msgspec

from hetsched.adapters.prometheus import LabelledNumber, PrometheusUrl, query
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.collected import Collected, CollectedNode, NodeAlias
from hetsched.contracts.objects.node_report import PowerReport
from hetsched.contracts.params import Params
from hetsched.contracts.times import rfc3339

from .facts import FactReader
from .node_names import Naming
from .registry import collector
from .requests import CollectorClient

_Query = Annotated[str, msgspec.Meta(max_length=2000)]
_Label = Annotated[str, msgspec.Meta(max_length=100)]


class PrometheusFactsParams(Params, frozen=True):
    """Address of Prometheus and the queries for the facts."""

    url: PrometheusUrl = ""
    offline_capacity: Annotated[
        _Query, msgspec.Meta(title="Offline capacity", description="Free cores of each zone; empty: no query.")
    ] = ""
    power_state: Annotated[
        _Query, msgspec.Meta(title="Power state", description="1 for the current state of a node; empty: no query.")
    ] = ""
    headroom_watts: Annotated[
        _Query, msgspec.Meta(title="Power headroom", description="Spare watts of each node; empty: no query.")
    ] = ""
    node_label: Annotated[
        _Label, msgspec.Meta(title="Node label", description="The label that names the node; empty: the usual ones.")
    ] = ""
    zone_label: Annotated[_Label, msgspec.Meta(title="Zone label", description="The label that names the zone.")] = (
        "zone"
    )
    state_label: Annotated[
        _Label, msgspec.Meta(title="State label", description="The label that holds the power state.")
    ] = "state"


@collector(
    "prometheus-facts", summary="Power and offline capacity of nodes, from Prometheus.", params=PrometheusFactsParams
)
class PrometheusFacts:
    params: PrometheusFactsParams

    def urls(self) -> tuple[str, ...]:
        return (self.params.url,)

    def check(self) -> None:
        params = self.params
        if not params.url:
            raise InputError("CollectorParamInvalid", "the URL of Prometheus is missing", place="params.url")
        if not (params.offline_capacity or params.power_state or params.headroom_watts):
            raise InputError("CollectorParamInvalid", "at least one query is required", place="params")

    def collect(self, ask: CollectorClient, nodes: Sequence[NodeAlias], now: float) -> Collected:
        params, reader, naming = self.params, FactReader(), Naming(nodes)
        zones: dict[str, dict[str, int]] = {}
        states: dict[str, str | None] = {}
        watts: dict[str, int | None] = {}
        at = 0.0

        def rows(text: str) -> Iterator[tuple[str, LabelledNumber]]:
            nonlocal at
            for number in query(ask, params.url, text) if text else ():
                at = max(at, number.at)
                node = naming.of_labels(number.labels, params.node_label)
                if node is not None:
                    yield node, number

        for node, number in rows(params.offline_capacity):
            zone, millis = number.labels.get(params.zone_label, ""), reader.millis(node, number.value)
            if zone and millis is not None:
                zones.setdefault(node, {})[zone] = millis
        for node, number in rows(params.power_state):
            if number.value == 1:
                states[node] = reader.state(node, number.labels.get(params.state_label, ""), {})
        for node, number in rows(params.headroom_watts):
            watts[node] = reader.watts(node, number.value)
        seen = rfc3339(datetime.fromtimestamp(at, UTC)) if at else ""
        findings = []
        for node in sorted({*zones, *states, *watts}):
            power = PowerReport(states.get(node), watts.get(node))
            known = power if power != PowerReport() else None
            findings.append(CollectedNode(node, seen, zones=zones.get(node, {}), power=known))
        return Collected(tuple(findings), tuple(reader.problems))
