"""Models of the app, grouped into modules."""

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
