"""Hypothetical nodes: a cluster with additional nodes from a description, or with copies of existing nodes.

A copy has all facts of its original except those that identify a machine: uid, addresses, GPU uuids, measured use, and
the hostname label. It is named `<node>-copy-<n>`, with the first free numbers. Added nodes are empty.
Invariants: the given state is unchanged; running pods remain on their nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice

import msgspec

from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.contracts.objects.node_report import NodeReport, NumaReport
from hetsched.engine.cluster.state import ClusterState

HOST_NAME = "kubernetes.io/hostname"
MOST_COPIES = 5_000


def copies(state: ClusterState, wanted: Mapping[str, int]) -> list[NodeReport]:
    """Return the requested number of copies of each node.

    Raises: InputError `NodeUnknown`, `NodeCopiesInvalid`.
    """
    if sum(wanted.values()) > MOST_COPIES or any(number < 1 for number in wanted.values()):
        raise InputError(
            "NodeCopiesInvalid",
            Message("the total number of copies must be between 1 and {n}", n=MOST_COPIES),
            place="copyNodes",
            hint="Write a number in this range",
        )
    made: list[NodeReport] = []
    for name, number in wanted.items():
        row = state.row_of.get(name)
        if row is None:
            raise _unknown(name, "copyNodes")
        made += [_copy(state.reports[row], free) for free in islice(_free_names(state, name), number)]
    return made


def _free_names(state: ClusterState, name: str) -> Iterator[str]:
    return (free for number in count(1) if (free := f"{name}-copy-{number}") not in state.row_of)


def _copy(report: NodeReport, name: str) -> NodeReport:
    labels = {**report.labels, **({HOST_NAME: name} if HOST_NAME in report.labels else {})}
    cards = report.gpus and tuple(msgspec.structs.replace(card, uuid=None) for card in report.gpus)
    return msgspec.structs.replace(
        report, name=name, uid="", labels=labels, addresses=(), usage=None, gpus=cards, unschedulable=False,
        image_sizes=b"", numa=report.numa and _unused(report.numa),
    )  # fmt: skip


def _unused(numa: NumaReport) -> NumaReport:
    """Return the NUMA report of a node as if its kubelet had assigned no CPUs or memory to pods."""
    zones = tuple(msgspec.structs.replace(zone, available={}) for zone in numa.zones)
    return msgspec.structs.replace(numa, zones=zones, grants=())


def with_nodes(state: ClusterState, added: Sequence[NodeReport]) -> ClusterState:
    """Rebuild the state with more nodes; current measured use is kept.

    Raises: InputError `NodeExists`.
    """
    known = set(state.row_of)
    for node in added:
        if node.name in known:
            raise InputError(
                "NodeExists",
                Message("node {node} already exists", node=node.name),
                place="addNodes",
                hint="Use another name",
            )
        known.add(node.name)
    names = state.columns.names
    running = [
        msgspec.structs.replace(placed.pod, node_name=names[placed.row], allocation=placed.allocation)
        for placed in state.placed_pods.values()
    ]
    reports = [state.report_now(row) for row in range(len(state.reports))]
    larger = ClusterState(
        [*reports, *added],
        running,
        state.namespaces,
        storage=state.volumes.storage,
        devices=state.devices.known,
        quotas=state.quotas.limits.values(),
        budgets=state.budgets,
        experience=state.experience,
        clocked=state.clocked,
    )
    larger.avoided = state.avoided
    return larger


def _unknown(name: str, place: str) -> InputError:
    hint = "Name a node of the cluster"
    return InputError("NodeUnknown", Message("there is no node {node}", node=repr(name[:80])), place=place, hint=hint)


def check_drained(state: ClusterState, names: Sequence[str]) -> tuple[str, ...]:
    """Return the nodes to drain, without duplicates.

    Raises: InputError `NodeUnknown`, `NodeRepeated`.
    """
    for name in names:
        if name not in state.row_of:
            raise _unknown(name, "drain")
    if len(set(names)) != len(names):
        raise InputError(
            "NodeRepeated", "the drain lists a node more than once", place="drain", hint="Name each node once"
        )
    return tuple(names)
