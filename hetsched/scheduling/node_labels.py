"""Labels of a node that the API server copies to a pod at its binding.

The reservation of a placed pod contains these labels in advance, so the watch confirmation of the binding changes
nothing. Without them, each confirmation would be read completely, and each pod would be reserved again.
Source: Kubernetes KEP-4742, admission plugin PodTopologyLabels.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hetsched.contracts.objects.workload import copied_labels
from hetsched.engine.cluster.state import ClusterState
from hetsched.placement.scheduling_result import Result


def with_node_labels(state: ClusterState, results: Sequence[Result]) -> list[Result]:
    """Add the copied labels of its node to each placed pod, in the state and in the reserved spec of the result."""
    return [_with_node_labels(state, result) for result in results]


def _with_node_labels(state: ClusterState, result: Result) -> Result:
    if result.node_id is None:
        return result
    spec = result.waiting.spec
    labels = copied_labels(state.reports[state.row_of[result.node_name]].labels)
    if not labels or copied_labels(spec.labels) == labels:
        return result
    placed = state.forget(spec.key)
    assert placed is not None
    placed.pod = msgspec.structs.replace(placed.pod, labels={**placed.pod.labels, **labels})
    state.restore(placed)
    return msgspec.structs.replace(result, reserved_spec=msgspec.structs.replace(spec, labels=placed.pod.labels))
