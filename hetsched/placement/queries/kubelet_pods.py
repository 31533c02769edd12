"""Match pods with exclusive CPUs, devices or memory in a kubelet's report with pods in the database."""

from __future__ import annotations

from hetsched.contracts.messages.agent_report import KubeletState
from hetsched.inventory.models import Cluster
from hetsched.placement.lifecycle import HOLDING
from hetsched.placement.models import Pod

_HOLDING = [state.value for state in HOLDING]


def pods_with_grants(cluster: Cluster, node: str, kubelet: KubeletState) -> set[str]:
    """Return the keys of `kubelet.holders` that name pods in the database.

    Only pods of the node are compared: by uid, or by name for a static pod, because its uid in the API server differs.
    """
    keys = kubelet.holders
    # filter by node first: uids have no index
    there = Pod.objects.filter(node__cluster=cluster, node__name=node)
    found = set(there.filter(uid__in=[key for key in keys if "/" not in key]).values_list("uid", flat=True))
    rest = {key: key if "/" in key else kubelet.pod_names.get(key, "") for key in keys - found}
    if any(rest.values()):
        pods = there.filter(state__in=_HOLDING)
        names = {f"{namespace}/{name}" for namespace, name in pods.values_list("namespace", "name")}
        found |= {key for key, name in rest.items() if name in names}
    return found
