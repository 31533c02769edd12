"""Tables of the app, one module for each group."""

from .clusters import DNS_LABEL, Cluster, ClusterKind, Connection, Node, Sync
from .collectors import Collector
from .image_index import ImageIndex
from .node_facts import NodeFacts

__all__ = [
    "DNS_LABEL",
    "Cluster",
    "ClusterKind",
    "Collector",
    "Connection",
    "ImageIndex",
    "Node",
    "NodeFacts",
    "Sync",
]
