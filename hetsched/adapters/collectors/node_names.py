"""Which node a source means.

Rule: of the labels that may name a node the first one that names a node of ours counts: `node`, `kubernetes_node`,
`nodename`, then `instance`; a value is a node's name, else one of its addresses, both also with a port at the end. The
node's name up to its first dot is tried last, where it is nobody else's: machines call themselves by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hetsched.contracts.collected import NodeAlias

LABELS = ("node", "kubernetes_node", "nodename", "instance")


class Naming:
    """The nodes of one cluster, by everything they may be called."""

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
        """Return the node that a name or an address, with or without a port, means."""
        return self._names.get(text) or self._names.get(_without_port(text))

    def of_labels(self, labels: Mapping[str, str], label: str = "") -> str | None:
        """Return the node that the labels of a series mean; `label` is the only one that counts, where it is given."""
        found = (self.of(labels[name]) for name in ((label,) if label else LABELS) if labels.get(name))
        return next((name for name in found if name), None)


def _without_port(text: str) -> str:
    host, colon, port = text.rpartition(":")
    return host.strip("[]") if colon and port.isdigit() and (":" not in host or host.startswith("[")) else text
