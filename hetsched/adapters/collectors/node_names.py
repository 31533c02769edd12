"""Mapping of the names by which a source identifies nodes to the nodes of the cluster.

The first label that matches a node is used, in the order `node`, `kubernetes_node`, `nodename`, `instance`. A value is
a node's name or one of its addresses, either with an optional port. The part of a node's name before the first dot is
tried last, because machines use it as their host name. It identifies a node only if no other node has the same part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hetsched.contracts.objects.collected import NodeAlias

LABELS = ("node", "kubernetes_node", "nodename", "instance")


class Naming:
    """The nodes of one cluster, indexed by all their names and addresses."""

    def __init__(self, nodes: Iterable[NodeAlias]) -> None:
        nodes = list(nodes)
        short: dict[str, str] = {}
        for node in nodes:
            head = node.name.partition(".")[0]
            short[head] = "" if head in short else node.name
        self._names = {head: name for head, name in short.items() if name}
        for node in nodes:
            self._names.update(dict.fromkeys(node.addresses, node.name))
        self._names.update({node.name: node.name for node in nodes})

    def of(self, text: str) -> str | None:
        """Return the node with this name or address, with or without a port."""
        return self._names.get(text) or self._names.get(_without_port(text))

    def of_labels(self, labels: Mapping[str, str], label: str = "") -> str | None:
        """Return the node that the labels of a series identify; `label`, if given, is the only label that is tried."""
        found = (self.of(labels[name]) for name in ((label,) if label else LABELS) if labels.get(name))
        return next((name for name in found if name), None)


def _without_port(text: str) -> str:
    host, colon, port = text.rpartition(":")
    return host.strip("[]") if colon and port.isdigit() and (":" not in host or host.startswith("[")) else text
