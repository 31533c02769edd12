"""A random walk through all events of a cluster, for tests of invariants at every step.

The same seed results in the same walk. Steps use the same actions and scheduling task as hetsched itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
from django.utils import timezone

from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.policy import PluginUse
from hetsched.contracts.times import rfc3339
from hetsched.inventory.actions import cordon, uncordon
from hetsched.inventory.models import Cluster, Node
from hetsched.placement import actions
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Pod, Workload
from hetsched.policies.actions import activate, save_draft
from hetsched.policies.models import PolicyRevision
from tests.builders import NodeBuilder, PodBuilder, a_node, a_pod
from tests.situations import ALICE, a_cluster, submitted
from workers import schedule


class Walk:
    """One cluster of six different nodes, some with running pods, and its events."""

    def __init__(self, seed: int, name: str = "walk") -> None:
        self.draw = random.Random(seed)
        self.number = 0
        self.nodes = [self._node(f"n{number}") for number in range(6)]
        running = (a_pod("old-0").running_on("n0"), a_pod("old-1").gpu(1, milli=500).running_on("n1"))
        self.cluster = a_cluster(*self.nodes, name=name, running=running)

    def _node(self, name: str) -> NodeBuilder:
        node = a_node(name).cpu(self.draw.choice((4, 8))).arch(self.draw.choice(("amd64", "arm64")))
        if name in ("n1", "n3"):
            node.gpus(2)
        if name == "n2":
            node.using(rfc3339(timezone.now()), cpu="1500m", memory="2Gi")
        return node

    def step(self) -> str:
        """Run one random step and return its name."""
        steps: list[Callable[[], object]] = [
            self.submit, self.submit, self.submit, self.decide, self.decide, self.decide, self.bind, self.bind,
            self.finish, self.finish, self.reject, self.cancel, self.retry, self.cordon, self.uncordon,
            self.set_priority, self.import_again, self.change_policy,
        ]  # fmt: skip
        chosen = self.draw.choice(steps)
        chosen()
        return chosen.__name__

    def submit(self) -> None:
        pods = [self._pod() for _ in range(self.draw.randint(1, 4))]
        submitted(self.cluster, *pods, priority=self.draw.choice((None, 5)))

    def _pod(self) -> PodBuilder:
        self.number += 1
        pod = a_pod(f"p{self.number}").cpu(self.draw.choice(("200m", "1", "3"))).memory("1Gi")
        kind = self.draw.choice(("plain", "plain", "card", "share", "arm", "wrong", "huge"))
        if kind == "card":
            pod.gpu(1)
        elif kind == "share":
            pod.gpu(1, milli=self.draw.choice((200, 500)))
        elif kind == "arm":
            pod.on_nodes_with(**{"kubernetes.io/arch": "arm64"})
        elif kind == "wrong":
            pod.wrong()
        elif kind == "huge":
            pod.cpu("64")
        return pod.labelled(app="walk")

    def decide(self) -> None:
        Pod.objects.filter(cluster=self.cluster).update(not_before=None)
        schedule.run(self.cluster.pk)

    def _some(self, *states: State) -> list[int]:
        rows = Pod.objects.filter(cluster=self.cluster, state__in=states).exclude(workload=None).order_by("id")
        ids = list(rows.values_list("id", flat=True))
        return self.draw.sample(ids, min(len(ids), 3))

    def bind(self) -> None:
        for state, act in (
            (State.BOUND, actions.start), (State.BINDING, actions.confirm), (State.PLACED, actions.begin_binding),
        ):  # fmt: skip
            if ids := self._some(state):
                act(self.cluster.pk, ids)

    def finish(self) -> None:
        if ids := self._some(State.RUNNING, State.BOUND, State.PLACED):
            to = self.draw.choice((State.SUCCEEDED, State.FAILED))
            actions.release(self.cluster.pk, ids, to=to, reason="its end")

    def reject(self) -> None:
        if ids := self._some(State.PLACED, State.BINDING):
            actions.reject(self.cluster.pk, ids, reason="no")

    def _workload(self) -> Workload | None:
        ids = list(Workload.objects.filter(cluster=self.cluster).order_by("id").values_list("id", flat=True))
        return Workload.objects.get(pk=self.draw.choice(ids)) if ids else None

    def cancel(self) -> None:
        if workload := self._workload():
            actions.cancel(workload, actor=ALICE, reason="enough")

    def retry(self) -> None:
        if workload := self._workload():
            try:
                actions.retry(workload, actor=ALICE, reason="again")
            except InputError as error:
                assert error.code == "NothingToRetry"  # noqa: PT017

    def set_priority(self) -> None:
        if workload := self._workload():
            actions.set_priority(workload, self.draw.randrange(9), actor=ALICE, reason="urgent")

    def cordon(self) -> None:
        cordon(self.cluster, f"n{self.draw.randrange(6)}", actor=ALICE, reason="maintenance")

    def uncordon(self) -> None:
        cordoned = Node.objects.filter(cluster=self.cluster, cordoned_by_operator=True).order_by("name").first()
        if cordoned is not None:
            uncordon(self.cluster, cordoned.name, actor=ALICE, reason="done")

    def import_again(self) -> None:
        """Import the cluster as it would be exported, with a changed label on one node."""
        content = actions.export_cluster(Cluster.objects.get(pk=self.cluster.pk))
        changed = msgspec.structs.replace(content.nodes[0], labels={**content.nodes[0].labels, "n": str(self.number)})
        again = msgspec.structs.replace(content, nodes=(changed, *content.nodes[1:]), pending=())
        actions.import_cluster(again, name=self.cluster.name, actor=ALICE)

    def change_policy(self) -> None:
        spec = PolicyRevision.objects.get(policy__name="hetsched", state="active").spec
        plugins = tuple(msgspec.structs.replace(use, weight=float(self.draw.randint(1, 5))) for use in spec.plugins)
        if self.draw.random() < 0.7 and "preemption" not in {use.name for use in plugins}:
            plugins += (PluginUse("preemption"),)
        draft = save_draft(msgspec.structs.replace(spec, plugins=plugins), actor=ALICE)
        activate("hetsched", draft.version, actor=ALICE, reason="a walk")
