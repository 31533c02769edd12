"""YAML text of policies as SchedulingPolicy objects, and of pods as Pod objects.

The text has one line per plugin and omits default values. Clusters and the REST API accept it, and reading it yields
the same policy.
"""

from __future__ import annotations

from typing import Any

import yaml

from hetsched.adapters.objects.export.cluster import policy_object
from hetsched.adapters.objects.export.pods import pod_object
from hetsched.contracts.documents import to_plain
from hetsched.contracts.objects.policy import PluginUse, PolicySpec, Ties
from hetsched.contracts.objects.workload import PodSpec

_WIDTH = 110


class _Writer(yaml.SafeDumper):
    """YAML writer with one plugin per line: mappings inside the list of plugins are in flow style."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


class _FlowMapping(dict[str, Any]):
    """A mapping that is written on one line."""


def _on_one_line(writer: yaml.SafeDumper, values: _FlowMapping) -> yaml.Node:
    return writer.represent_mapping("tag:yaml.org,2002:map", values, flow_style=True)


_Writer.add_representer(_FlowMapping, _on_one_line)


def manifest_of(spec: PolicySpec) -> str:
    """Return the YAML text of a policy's SchedulingPolicy object."""
    whole = policy_object(spec)
    body: dict[str, Any] = {"description": spec.description} if spec.description else {}
    body["plugins"] = [_plugin(use) for use in spec.plugins]
    if spec.ties != Ties():
        body["ties"] = _FlowMapping(to_plain(spec.ties))
    whole["metadata"] = _FlowMapping(whole["metadata"])
    return _text({**whole, "spec": body})


def pod_text(pod: PodSpec) -> str:
    """Return the YAML text of a pod as submitted, without its placement."""
    whole = pod_object(pod)
    spec = {name: value for name, value in whole["spec"].items() if name not in ("nodeName", "priority")}
    return _text({"apiVersion": "v1", "kind": "Pod", "metadata": whole["metadata"], "spec": spec})


def _text(whole: dict[str, Any]) -> str:
    return yaml.dump(whole, Dumper=_Writer, sort_keys=False, allow_unicode=True, width=_WIDTH)


def _plugin(use: PluginUse) -> _FlowMapping:
    line = _FlowMapping(name=use.name)
    if use.weight != 1:
        line["weight"] = int(use.weight) if use.weight == int(use.weight) else use.weight
    if use.params:
        line["params"] = to_plain(dict(use.params))
    return line
