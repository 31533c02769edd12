"""Facts about racks and hosts from any system that returns a JSON document in response to a GET request.

`nodes` is the path to a list of items, each with its node's name at `name`, or to a mapping from names to items. Every
other path starts at an item and leads to one fact; an empty path, or a path without a value, means that the fact is
absent. `zones` is the path to a mapping from zones to their remaining CPU (a quantity, or cores), or to a list with
`zone_name` and `offline_capacity` in each item. Without `observed_at`, facts are dated with the time of the response. A
path only selects a value; it cannot compute one.

A path such as `$.racks[0]["power state"].watts` consists of names, after a dot or quoted in brackets, and of whole
numbers in brackets; negative numbers count from the end. The leading `$` is optional. There are no wildcards, filters
or expressions: a path leads to one value or to none.
Source: cassini (Tencent 2022), in which a master adds facts that a node cannot know; the origin of these facts is not
published. Member and index selectors of RFC 9535.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Any

import msgspec

from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.contracts.objects.collected import Collected, CollectedNode, NodeAlias
from hetsched.contracts.objects.node_report import PowerReport
from hetsched.contracts.params import Params
from hetsched.contracts.times import rfc3339

from .facts import FactReader
from .node_names import Naming
from .registry import collector
from .requests import CollectorClient, SourceError

MISSING: Any = object()
_MOST_STEPS = 16
_STEP = re.compile(
    r"""\.?(?P<name>[A-Za-z_][A-Za-z0-9_-]*)|\[(?P<index>-?[0-9]{1,6})\]|\[(?P<q>["'])(?P<quoted>[^"'\\]{1,200})(?P=q)\]"""
)


@lru_cache(maxsize=512)
def parse(path: str) -> tuple[str | int, ...]:
    """Return the names and indexes that a path consists of. Raises: InputError `JsonPathMalformed`."""
    rest = path.strip().removeprefix("$")
    steps: list[str | int] = []
    while rest:
        match = _STEP.match(rest)
        if match is None or (steps and match["name"] and not rest.startswith(".")) or len(steps) >= _MOST_STEPS:
            hint = 'Use only names and numbers, such as $.racks[0]["power state"].watts'
            raise InputError(
                "JsonPathMalformed", Message("{text} is not a path to a value", text=repr(path[:80])), hint=hint
            )
        steps.append(int(match["index"]) if match["index"] else match["name"] or match["quoted"])
        rest = rest[match.end() :]
    return tuple(steps)


def find(document: Any, path: str) -> Any:
    """Return the value at a path, or MISSING if there is none."""
    for step in parse(path):
        if isinstance(step, int):
            if not isinstance(document, list) or not -len(document) <= step < len(document):
                return MISSING
            document = document[step]
        elif isinstance(document, dict) and step in document:
            document = document[step]
        else:
            return MISSING
    return document


MOST_ITEMS = 50_000
_Path = Annotated[str, msgspec.Meta(max_length=300)]


class HttpJsonParams(Params, frozen=True):
    """Address of the document, and the paths of the facts in it."""

    url: Annotated[str, msgspec.Meta(title="Address", description="URL of the document.", max_length=500)] = ""
    nodes: Annotated[
        _Path, msgspec.Meta(title="Nodes", description="Path to the list, or the mapping, of nodes; $: all of it.")
    ] = "$.nodes"
    name: Annotated[_Path, msgspec.Meta(title="Name", description="Path in an item to its node's name or address.")] = (
        "$.name"
    )
    power_state: Annotated[
        _Path, msgspec.Meta(title="Power state", description="Path to on, saving, capped, off or maintenance.")
    ] = ""
    headroom_watts: Annotated[_Path, msgspec.Meta(title="Power headroom", description="Path to the spare watts.")] = ""
    zones: Annotated[_Path, msgspec.Meta(title="Zones", description="Path to the list, or mapping, of zones.")] = ""
    zone_name: Annotated[_Path, msgspec.Meta(title="Zone", description="Path in a zone to its name.")] = "$.name"
    offline_capacity: Annotated[
        _Path, msgspec.Meta(title="Offline capacity", description="Path in a zone to its free CPU.")
    ] = "$.offline_capacity"
    observed_at: Annotated[
        _Path, msgspec.Meta(title="Time", description="Path in an item to its time; empty: now.")
    ] = ""
    states: Annotated[
        dict[str, str],
        msgspec.Meta(title="States", description='Power state by value of the source: {"PSU_DOWN": "off"}.'),
    ] = {}


@collector("http-json", summary="Power and offline capacity of nodes, from a JSON document.", params=HttpJsonParams)
class HttpJson:
    params: HttpJsonParams

    def urls(self) -> tuple[str, ...]:
        return (self.params.url,)

    def check(self) -> None:
        params = self.params
        if not params.url:
            raise InputError("CollectorParamInvalid", "the URL of the document is missing", place="params.url")
        if not (params.power_state or params.headroom_watts or params.zones):
            raise InputError("CollectorParamInvalid", "at least one path to a node fact is required", place="params")
        for field in ("nodes", "name", "power_state", "headroom_watts", "zones", "zone_name", "offline_capacity",
                      "observed_at"):  # fmt: skip
            try:
                parse(getattr(params, field))
            except InputError as error:
                raise error.at(f"params.{field}") from None

    def collect(self, ask: CollectorClient, nodes: Sequence[NodeAlias], now: float) -> Collected:
        params, reader, naming = self.params, FactReader(), Naming(nodes)
        listed = find(ask.json(params.url), params.nodes)
        if not isinstance(listed, list | dict) or len(listed) > MOST_ITEMS:
            raise SourceError(
                "AnswerMalformed", Message("the value at {text} is not a list or an object of nodes", text=params.nodes)
            )
        seen = rfc3339(datetime.fromtimestamp(now, UTC))
        findings: dict[str, CollectedNode] = {}
        for name, item in _named(listed, params.name):
            node = naming.of(name)
            if node is not None:
                findings[node] = self._finding(node, item, reader, seen)
        if listed and not findings:
            reader.problems.append(f"none of the {len(listed)} items matches a node of this cluster")
        return Collected(tuple(findings[node] for node in sorted(findings)), tuple(reader.problems))

    def _finding(self, node: str, item: Any, reader: FactReader, now: str) -> CollectedNode:
        params = self.params
        state, watts, at = (
            find(item, path) if path else MISSING
            for path in (params.power_state, params.headroom_watts, params.observed_at)
        )
        power = PowerReport(
            None if _absent(state) else reader.state(node, state, params.states),
            None if _absent(watts) else reader.watts(node, watts),
        )
        seen = now if _absent(at) else reader.moment(node, at) or now
        zones = {}
        found = find(item, params.zones) if params.zones else MISSING
        if isinstance(found, dict):
            pairs: list[tuple[str, Any]] = list(found.items())
        else:
            pairs = list(_named(found if isinstance(found, list) else [], params.zone_name))
            pairs = [(zone, find(inner, params.offline_capacity)) for zone, inner in pairs]
        for zone, value in pairs[:1024]:
            millis = None if _absent(value) else reader.millis(node, value)
            if millis is not None:
                zones[zone] = millis
        return CollectedNode(node, seen, zones=zones, power=power if power != PowerReport() else None)


def _named(listed: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(listed, dict):
        yield from listed.items()
        return
    for item in listed:
        name = find(item, path)
        if isinstance(name, str | int) and not isinstance(name, bool):
            yield str(name), item


def _absent(value: Any) -> bool:
    return value is MISSING or value is None
