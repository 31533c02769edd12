"""Random arrivals, evictions and deletions of gangs on a live cluster: a gang starts with its minimum, or waits."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from hetsched.contracts.objects.workload import GangMember
from hetsched.inventory.models import Cluster
from hetsched.placement import dispatch
from hetsched.placement.actions.evictions import claim_evictions, mark_refused, mark_requested
from hetsched.placement.lifecycle import HOLDING, QUEUED
from hetsched.placement.models import Decision, Eviction, Nomination, Pod
from tests.builders import PodBuilder, a_node, a_pod
from tests.situations import a_live_cluster
from tests.workers.test_nominated_gangs import arrive, retry
from tests.workers.test_nominated_pods import decide, end, observed, seen

pytestmark = pytest.mark.django_db
STEPS = 12


class RandomRun:
    """A live cluster of 2 to 4 nodes of 8 CPUs, and the minimum of each gang that has lost no member."""

    def __init__(self, seed: int) -> None:
        self.generator = random.Random(seed)
        self.cluster: Cluster = a_live_cluster()
        self.least: dict[str, int] = {}
        names = [f"n{row}" for row in range(self.generator.randint(2, 4))]
        running = [observed(pod, node=node) for node in names for pod in self._residents(node)]
        seen(self.cluster, nodes=[a_node(name).cpu(8).build() for name in names], pods=running)

    def _residents(self, node: str) -> Iterator[PodBuilder]:
        free = 8
        for number in range(6):
            cpu, priority = self.generator.choice([1, 2, 3]), self.generator.choice([0, 0, 5, 300])
            if cpu <= free and self.generator.random() < 0.85:
                free -= cpu
                yield a_pod(f"low-{node}-{number}").cpu(cpu).having(priority=priority)

    def add_pods(self, number: int) -> None:
        """Add a gang, or a single pod, of random size and priority."""
        generator, priority = self.generator, self.generator.choice([50, 150, 400])
        if generator.random() < 0.3:
            arrive(self.cluster, a_pod(f"s{number}").cpu(generator.choice([1, 2, 4, 8])).having(priority=priority))
            return
        name, least = f"g{number}", generator.randint(1, 4)
        gang = GangMember(name, least, disruption_mode=generator.choice(["Single", "All"]))
        sizes = [generator.randint(1, 4) for _ in range(2)]
        self.least[name] = least
        members = range(generator.randint(least, 5))
        pods = [a_pod(f"{name}-{n}").cpu(generator.choice(sizes)).having(priority=priority, gang=gang) for n in members]
        arrive(self.cluster, *pods)

    def delete_member(self) -> None:
        """Delete a pending member of a gang."""
        pending = Pod.objects.filter(state__in=QUEUED).exclude(gang="").order_by("name")
        if names := list(pending.values_list("name", flat=True)):
            self._end(self.generator.choice(names))

    def reject_eviction(self) -> None:
        for group in claim_evictions(self.cluster.pk, 1):
            mark_refused(self.cluster.pk, group[0], "the budget allows no eviction")

    def evict(self) -> None:
        """Request the due evictions, and report the deletion of about half of the victims."""
        for group in claim_evictions(self.cluster.pk, 100):
            mark_requested(group)
        leaving = Eviction.objects.filter(state=Eviction.ASKED, victim__state__in=HOLDING)
        names = sorted(set(leaving.values_list("victim__name", flat=True)))
        self._end(*(name for name in names if self.generator.random() < 0.5))

    def _end(self, *names: str) -> None:
        for gang in Pod.objects.filter(name__in=names).values_list("gang", flat=True):
            self.least.pop(gang, None)
        if names:
            end(self.cluster, *names)

    def check(self) -> None:
        decide(self.cluster)  # checks the invariants of the ledger, too
        assert not Decision.objects.filter(summary__contains="could not be scheduled").exists()
        assert not Nomination.objects.filter(active=True).exclude(pod__state__in=QUEUED).exists()
        for gang, least in self.least.items():
            members = Pod.objects.filter(gang=gang)
            placed = members.filter(state__in=HOLDING).count()
            nominated = Nomination.objects.filter(active=True, pod__gang=gang).count()
            assert placed == 0 or placed >= least, gang
            assert nominated == 0 or placed + nominated >= least, gang


@pytest.mark.parametrize("seed", range(12))
def test_gangs_start_with_their_minimum(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "wake", lambda row_id, task=dispatch.SCHEDULE: None)
    run = RandomRun(seed)
    for number in range(STEPS):
        action = run.generator.random()
        if action < 0.5:
            run.add_pods(number)
        elif action < 0.6:
            run.delete_member()
        elif action < 0.7:
            run.reject_eviction()
        else:
            run.evict()
        if run.generator.random() < 0.7:
            retry(*Pod.objects.filter(state__in=QUEUED).values_list("name", flat=True))
        run.check()
