"""Order the queue by dominant share: the namespace with the lowest share of the cluster comes next.

Rule: pods with higher priority come first. Among pods with equal priority, the team with the lowest weighted dominant
share comes next, in this team the namespace with the lowest share, and in this namespace the first pod
(`engine.cluster.shares`). The team of a pod is the value of its label `team_label`, or else of that label on its
namespace. With an empty `team_label` all pods belong to one team. The members of a gang are adjacent. A namespace that
floods the queue delays only its own pods.
Source: Ghodsi et al., Dominant Resource Fairness, NSDI 2011.
Example (from the publication): with 9 CPUs and 18 GiB, each pod of A requests 1 CPU and 4 GiB, each pod of B 3 CPUs and
1 GiB. A gets 3 pods (12 of 18 GiB = 2/3), B gets 2 pods (6 of 9 CPUs = 2/3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import msgspec

from hetsched.contracts.objects.workload import PodSpec
from hetsched.contracts.params import Params
from hetsched.engine.cluster.shares import TeamShares, filled
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.registry import plugin

_Weight = Annotated[float, msgspec.Meta(gt=0, le=1000)]


class FairShareParams(Params, frozen=True):
    """Groups and their weights."""

    team_label: Annotated[
        str,
        msgspec.Meta(
            title="Team label",
            description=(
                "Key of the label with the team name, read from the pod, or else from the pod's namespace; "
                "if empty, all pods form one team."
            ),
        ),
    ] = ""
    team_weights: Annotated[
        dict[str, _Weight],
        msgspec.Meta(title="Weights of teams", description="Weight of each team; 1 for teams that are not listed."),
    ] = {}
    namespace_weights: Annotated[
        dict[str, _Weight],
        msgspec.Meta(title="Weights of namespaces", description="Weight of each namespace; 1 if it is not listed."),
    ] = {}


@plugin(
    "fair-share",
    summary="Among pods of equal priority, schedule those of the team with the lowest use first.",
    params=FairShareParams,
)
class FairShare:
    params: FairShareParams

    def sort_key(self, pod: PodSpec) -> tuple[object, ...]:
        return (-pod.priority,)

    def arrange(
        self, pods: Sequence[PodSpec], state: ClusterState, placed: Callable[[PodSpec], bool]
    ) -> Iterator[PodSpec]:
        label = self.params.team_label

        def team_of(pod: PodSpec) -> str:
            return "" if not label else pod.labels.get(label) or state.namespaces.get(pod.namespace, {}).get(label, "")

        shares = TeamShares(state, team_of, self.params.namespace_weights, self.params.team_weights)
        return filled(pods, shares, placed)
