"""Measured usage of nodes from Prometheus, as node_exporter or the kubelets (cAdvisor) report it.

Each interval runs one query per resource for the whole cluster, and one for the time of the last scrape:
    cpu      cores in use, without idle, iowait and steal: rate over the window
    memory   total - available; for a kubelet the working set
    network  the busier direction, summed over all physical devices, bytes/s * 8 / 10^6 -> Mbit/s
    disk     read + written of all physical devices, bytes/s / 10^6 -> MB/s
    time     the time at which the exporter of a node was last scraped
Series are grouped by job and by every label that may name a node (`node_names`). If several series belong to one node,
the largest value is used, because two jobs may scrape the same exporter. A node without a time gets no sample, because
its exporter does not respond. The consumer decides when a sample is too old. A query may be replaced, or omitted with
`-`.
Source: MBCGT (Li et al. 2021) reads the load of node_exporter from Prometheus; node_exporter and cAdvisor document
their metrics.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec

from hetsched.adapters.prometheus import MATCHERS, LabelledNumber, PrometheusUrl, query
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.collected import Collected, CollectedNode, NodeAlias
from hetsched.contracts.params import Params
from hetsched.contracts.times import rfc3339
from hetsched.contracts.units import CPU, DISK_MBPS, MEMORY, NETWORK_MBPS

from .node_names import LABELS, Naming
from .registry import collector
from .requests import CollectorClient, SourceError

_MOST = 2**53
# Factors that convert Prometheus' units to those of node facts.
_FACTORS = {CPU: 1000.0, MEMORY: 1.0, NETWORK_MBPS: 8e-6, DISK_MBPS: 1e-6}
_NO_NETWORK = "lo|veth.*|cali.*|cilium.*|lxc.*|cni.*|docker.*|br-.*|flannel.*|kube-.*|nodelocaldns|virbr.*|tun.*|tap.*"
_NO_DISK = "loop.*|ram.*|zram.*|sr.*|fd.*|dm-.*|md.*"
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)
OMITTED = "-"

_PRESETS: dict[str, dict[str, str]] = {
    "node-exporter": {
        "time": 'max by (%L) (timestamp(node_cpu_seconds_total{mode="idle"%M}))',
        CPU: 'sum by (%L) (rate(node_cpu_seconds_total{mode!~"idle|iowait|steal"%M}[%W]))',
        MEMORY: "sum by (%L) (node_memory_MemTotal_bytes{%F} - node_memory_MemAvailable_bytes{%F})",
        NETWORK_MBPS: (
            f'(sum by (%L) (rate(node_network_receive_bytes_total{{device!~"{_NO_NETWORK}"%M}}[%W]))'
            f' > sum by (%L) (rate(node_network_transmit_bytes_total{{device!~"{_NO_NETWORK}"%M}}[%W])))'
            f' or sum by (%L) (rate(node_network_transmit_bytes_total{{device!~"{_NO_NETWORK}"%M}}[%W]))'
        ),
        DISK_MBPS: (
            f'sum by (%L) (rate(node_disk_read_bytes_total{{device!~"{_NO_DISK}"%M}}[%W])'
            f' + rate(node_disk_written_bytes_total{{device!~"{_NO_DISK}"%M}}[%W]))'
        ),
    },
    "kubelet": {
        "time": 'max by (%L) (timestamp(container_cpu_usage_seconds_total{id="/"%M}))',
        CPU: 'sum by (%L) (rate(container_cpu_usage_seconds_total{id="/"%M}[%W]))',
        MEMORY: 'sum by (%L) (container_memory_working_set_bytes{id="/"%M})',
        NETWORK_MBPS: (
            f'(sum by (%L) (rate(container_network_receive_bytes_total{{id="/",interface!~"{_NO_NETWORK}"%M}}[%W]))'
            f' > sum by (%L) (rate(container_network_transmit_bytes_total{{id="/",interface!~"{_NO_NETWORK}"%M}}[%W])))'
            f' or sum by (%L) (rate(container_network_transmit_bytes_total{{id="/",interface!~"{_NO_NETWORK}"%M}}[%W]))'
        ),
        DISK_MBPS: (
            f'sum by (%L) (rate(container_fs_reads_bytes_total{{id="/",device!~"(/dev/)?({_NO_DISK})"%M}}[%W])'
            f' + rate(container_fs_writes_bytes_total{{id="/",device!~"(/dev/)?({_NO_DISK})"%M}}[%W]))'
        ),
    },
}

_Query = Annotated[str, msgspec.Meta(max_length=2000)]
_HOW = "Replaces the preset's query; - omits the resource. %W, %L and %M: window, labels and selector."


class PrometheusLoadParams(Params, frozen=True):
    """Address of Prometheus and the queries for usage."""

    url: PrometheusUrl = ""
    exporter: Annotated[
        Literal["node-exporter", "kubelet"],
        msgspec.Meta(title="Exporter", description="Source of the metrics: node_exporter or the kubelets."),
    ] = "node-exporter"
    window_seconds: Annotated[
        int, msgspec.Meta(ge=2, le=86_400, title="Window", description="Window of the rates, in seconds.")
    ] = 120
    selector: Annotated[
        str,
        msgspec.Meta(
            title="Selector", description='Which series count, as job="node",cluster="a"; empty: all.', max_length=500
        ),
    ] = ""
    node_label: Annotated[
        str,
        msgspec.Meta(title="Node label", description="The label that names the node; empty: the usual ones are tried."),
    ] = ""
    cpu_query: Annotated[_Query, msgspec.Meta(title="CPU query", description=f"Cores. {_HOW}")] = ""
    memory_query: Annotated[_Query, msgspec.Meta(title="Memory query", description=f"Bytes. {_HOW}")] = ""
    network_query: Annotated[_Query, msgspec.Meta(title="Network query", description=f"Bytes/s. {_HOW}")] = ""
    disk_query: Annotated[_Query, msgspec.Meta(title="Disk query", description=f"Bytes/s. {_HOW}")] = ""
    time_query: Annotated[_Query, msgspec.Meta(title="Time query", description=f"Seconds since 1970. {_HOW}")] = ""


@collector("prometheus-load", summary="Measured use of nodes, from Prometheus.", params=PrometheusLoadParams, load=True)
class PrometheusLoad:
    params: PrometheusLoadParams

    def urls(self) -> tuple[str, ...]:
        return (self.params.url,)

    def check(self) -> None:
        params = self.params
        if not params.url:
            raise InputError("CollectorParamInvalid", "the URL of Prometheus is missing", place="params.url")
        if not MATCHERS.fullmatch(params.selector):
            hint = 'Write label="value" pairs, separated by commas, without braces'
            raise InputError(
                "CollectorParamInvalid", "the value is not a valid label selector", place="params.selector", hint=hint
            )
        if params.node_label and not _LABEL.fullmatch(params.node_label):
            raise InputError("CollectorParamInvalid", "the value is not a valid label name", place="params.node_label")
        if params.time_query == OMITTED:
            raise InputError(
                "CollectorParamInvalid",
                "the query for the sample time is required, because samples without a time are never fresh",
                place="params.time_query",
            )

    def queries(self) -> dict[str, str]:
        """Return the queries by resource, and the query for the time of the last scrape under `time`."""
        params, preset = self.params, _PRESETS[self.params.exporter]
        own = {
            "time": params.time_query,
            CPU: params.cpu_query,
            MEMORY: params.memory_query,
            NETWORK_MBPS: params.network_query,
            DISK_MBPS: params.disk_query,
        }
        labels = ", ".join(("job", params.node_label) if params.node_label else ("job", *LABELS))
        marks = {
            "%L": labels,
            "%M": f",{params.selector}" if params.selector else "",
            "%F": params.selector,
            "%W": f"{params.window_seconds}s",
        }
        asked = {}
        for name, text in own.items():
            if text != OMITTED:
                asked[name] = re.sub("%[LMFW]", lambda mark: marks[mark[0]], text or preset[name])
        return asked

    def collect(self, ask: CollectorClient, nodes: Sequence[NodeAlias], now: float) -> Collected:
        queries, naming = self.queries(), Naming(nodes)
        seen = query(ask, self.params.url, queries.pop("time"))
        times = self._by_node(seen, naming)
        problems = []
        if seen and not times:
            problems.append(f"none of the {len(seen)} series matches a node of this cluster")
        usage: dict[str, dict[str, int]] = {}
        for resource, text in queries.items():
            try:
                found = self._by_node(query(ask, self.params.url, text), naming)
            except SourceError as failed:
                problems.append(f"{resource}: {failed.message}")
                continue
            for node, value in found.items():
                if 0 <= value * _FACTORS[resource] <= _MOST:
                    usage.setdefault(node, {})[resource] = round(value * _FACTORS[resource])
        findings = [
            CollectedNode(node, rfc3339(datetime.fromtimestamp(times[node], UTC)), usage=dict(sorted(amounts.items())))
            for node, amounts in sorted(usage.items())
            if 0 < times.get(node, 0.0) < now + 300
        ]
        return Collected(tuple(findings), tuple(problems))

    def _by_node(self, found: Sequence[LabelledNumber], naming: Naming) -> dict[str, float]:
        values: dict[str, float] = {}
        for number in found:
            node = naming.of_labels(number.labels, self.params.node_label)
            if node is not None:
                values[node] = max(values.get(node, number.value), number.value)
        return values
