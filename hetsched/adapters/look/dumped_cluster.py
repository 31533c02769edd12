"""Content of a cluster from a dump, for a report."""

from __future__ import annotations

from collections.abc import Sequence

from hetsched.adapters.files import Source, convert, load_sources
from hetsched.adapters.kubernetes.observed_pods import observed_pod
from hetsched.adapters.objects.fields import FieldView
from hetsched.contracts.api.cluster_report import ClusterObservation


def parse_dump(sources: Sequence[Source]) -> ClusterObservation:
    """Read a cluster from (name, bytes) pairs, including the pods that their node did not run.

    Raises: InputError naming the file.
    """
    documents, lists = load_sources(sources, workload=False)
    content = convert(documents, lists, workload=False)
    pods = (FieldView(one.object) for one in documents if one.object["kind"] == "Pod")
    observed = [observed_pod(pod, None) for pod in pods]
    return ClusterObservation(
        content,
        rejected=tuple(pod for pod in observed if pod.refusal is not None),
        unhealthy=tuple(pod for pod in observed if pod.devices and not pod.ended),
    )
