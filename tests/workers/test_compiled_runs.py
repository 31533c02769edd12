"""Batches of which the compiled loop decides a part have the results of batches that the cycle decides pod by pod."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import threading
from collections.abc import Iterable, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.objects.policy import PolicySpec
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.compiled import code_loader
from hetsched.engine.compiled.batch import BatchScheduler
from hetsched.engine.framework.builtin_policies import BUILTIN, DEFAULT
from hetsched.engine.framework.cycle import Scheduler
from hetsched.placement.cluster_snapshot import ClusterSnapshot
from hetsched.placement.scheduler_cache import SchedulerCache
from hetsched.placement.scheduling_queue.active_queue import PendingPod
from hetsched.placement.scheduling_result import Result
from hetsched.scheduling import compiled_runs, machine_code, scheduling_cycle
from hetsched.scheduling.machine_code import MachineCode
from hetsched.scheduling.scheduling_cycle import SchedulingCycle
from tests.builders import a_node, a_pod
from tests.unit.engine.draws import NAMESPACES, mixed_fleets, mixed_pods
from tests.unit.engine.fleet import REGISTRY, cluster, compile_policy

ENOUGH_SECONDS = 3600.0
POLICIES = {name: msgspec.structs.replace(spec, version=1) for name, spec in BUILTIN.items()}


class Batches:
    """Batches on one cluster in memory, decided with the compiled loop or without it."""

    def __init__(self, fleet: Sequence[NodeReport], *, compiled: bool, evicts: bool = False, top: int = 3) -> None:
        self.compiled, self.top = compiled, top
        self.cache = SchedulerCache(1)
        state = cluster(fleet, namespaces=NAMESPACES)
        ids = {name: number for number, name in enumerate(state.columns.names)}
        self.snapshot = self.cache._snapshot = ClusterSnapshot(state, ids, 0, evicts=evicts)

    def decide(
        self, pods: Iterable[PodSpec], policies: Sequence[str], *, arrive: bool, most: int = 500
    ) -> list[Result]:
        """Decide pods, pod i under policy i modulo the number of policies; `arrive` as arriving pods."""
        pending = [
            PendingPod(number, None, pod, policies[number % len(policies)], "", "pending", 0, None)
            for number, pod in enumerate(pods)
        ]
        specs: dict[str, PolicySpec] = {name: POLICIES[name] for name in policies}
        order = self.cache.policy(POLICIES[policies[0]])
        with (
            mock.patch.object(compiled_runs.machine_code, "is_loaded", self.compiled),
            mock.patch.object(scheduling_cycle, "TURN_SECONDS", ENOUGH_SECONDS),  # no result depends on the duration
        ):
            cycle = SchedulingCycle(self.cache, self.snapshot, specs, self.top, has_refused_evictions=False)
            if arrive:
                results, _ = cycle.place([pod for pod in pending if pod.spec.gang is None], order, ENOUGH_SECONDS, {})
            else:
                results = cycle.decide(pending, order, ENOUGH_SECONDS, most)
        assert len(cycle.took_seconds) == len(results)
        assert not cycle.failed
        return results


def copies(pods: Sequence[PodSpec], count: int) -> list[PodSpec]:
    """Return `count` pods of each shape, with equal pods next to each other."""
    return [
        msgspec.structs.replace(pod, name=f"{pod.name}-{number}", uid=f"{pod.uid}-{number}")
        for pod in pods
        for number in range(count)
    ]


@pytest.mark.django_db
@settings(max_examples=100, deadline=None)
@given(
    mixed_fleets(),
    mixed_pods(),
    st.lists(st.sampled_from(sorted(BUILTIN)), min_size=1, max_size=2),
    st.integers(0, 4),
    st.booleans(),
    st.booleans(),
    st.lists(st.integers(0, 30), max_size=2),
)
def test_random_batches_have_the_same_results(
    fleet: list[NodeReport],
    pods: list[PodSpec],
    policies: list[str],
    top: int,
    arrive: bool,
    evicts: bool,
    cuts: list[int],
) -> None:
    pods = copies(pods, 5)
    by_pod, by_run = (Batches(fleet, compiled=compiled, evicts=evicts, top=top) for compiled in (False, True))
    for start, end in pairwise([0, *sorted({min(cut, len(pods)) for cut in cuts}), len(pods)]):
        expected = by_pod.decide(pods[start:end], policies, arrive=arrive, most=12)
        assert by_run.decide(pods[start:end], policies, arrive=arrive, most=12) == expected
        states = by_pod.snapshot.state, by_run.snapshot.state
        assert states[0].digest() == states[1].digest()
        assert states[0].columns.load.tobytes() == states[1].columns.load.tobytes()
        for key in sorted(states[0].placed_pods)[::3]:
            for state in states:
                state.forget(key)


@pytest.mark.parametrize("arrive", [False, True])
def test_loop_decides_runs_and_the_cycle_all_other_pods(arrive: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    in_loop: list[int] = []
    place_first = BatchScheduler.place_first

    def counting(self: BatchScheduler, *arguments: Any) -> Any:
        placements = place_first(self, *arguments)
        in_loop.append(len(placements))
        return placements

    monkeypatch.setattr(BatchScheduler, "place_first", counting)
    fleet = [a_node(f"n{number}").build() for number in range(3)]
    pods = [a_pod(f"a{number}").build() for number in range(10)]
    pods += [a_pod("large").cpu(1000).having(priority=-1).build()] if arrive else []
    found = Batches(fleet, compiled=True).decide(pods, [DEFAULT], arrive=arrive)
    assert [result.verdict for result in found] == [Verdict.PLACED] * 10
    assert sum(in_loop) == 10
    assert len(found[0].top) == 3


def test_batch_ends_after_the_maximum_number_of_pods() -> None:
    batches = Batches([a_node("n").build()], compiled=True)
    assert len(batches.decide([a_pod(f"a{n}").build() for n in range(20)], [DEFAULT], arrive=False, most=7)) == 7


@pytest.mark.django_db
def test_failure_of_the_loop_discards_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: BatchScheduler, *arguments: Any) -> Any:
        raise RuntimeError

    monkeypatch.setattr(BatchScheduler, "place_first", fail)
    batches = Batches([a_node("n").build()], compiled=True)
    pending = [PendingPod(n, None, a_pod(f"a{n}").build(), DEFAULT, "", "pending", 0, None) for n in range(5)]
    monkeypatch.setattr(compiled_runs.machine_code, "is_loaded", True)
    cycle = SchedulingCycle(batches.cache, batches.snapshot, POLICIES, 3, has_refused_evictions=False)
    results = cycle.decide(pending, None, ENOUGH_SECONDS, 500)
    assert cycle.failed
    assert [result.verdict for result in results] == [Verdict.PLACED] * 5


@pytest.fixture
def no_cached_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code, "_is_cached", lambda policy: False)


@pytest.mark.usefixtures("no_cached_code")
def test_machine_code_is_loaded_once_after_enough_pods(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.HETSCHED_COMPILE_AFTER_PODS = 100
    programs: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda program, **_: programs.append(program))
    policy = compile_policy(BUILTIN[DEFAULT], REGISTRY)
    code = MachineCode()
    code.count(99, policy)
    assert not threads()
    code.count(1, policy)
    code.count(1000, policy)
    for thread in threads():
        thread.join()
    assert code.is_loaded
    assert [program[-2:] for program in programs] == [["-m", "hetsched.scheduling.machine_code"]]


@pytest.mark.usefixtures("no_cached_code")
def test_machine_code_is_compiled_by_one_process_at_a_time(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.HETSCHED_COMPILE_AFTER_PODS = 1
    programs: list[list[str]] = []
    waits = threading.Event()
    monkeypatch.setattr(subprocess, "run", lambda program, **_: programs.append(program))
    monkeypatch.setattr(machine_code.time, "sleep", lambda seconds: waits.set() or waits.wait(seconds))
    code = MachineCode()
    with open(machine_code.__file__) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code.count(1, compile_policy(BUILTIN[DEFAULT], REGISTRY))
        assert waits.wait(timeout=60)
        assert not programs
    for thread in threads():
        thread.join()
    assert len(programs) == 1
    assert code.is_loaded


@pytest.mark.usefixtures("no_cached_code")
@pytest.mark.parametrize("error", [OSError(errno.ENOLCK, "no locks"), OSError(errno.EBADF, "read-only")])
def test_machine_code_is_compiled_on_file_systems_without_locks(
    monkeypatch: pytest.MonkeyPatch, settings: Any, error: OSError
) -> None:
    def flock(*_: Any) -> None:
        raise error

    settings.HETSCHED_COMPILE_AFTER_PODS = 1
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: None)
    monkeypatch.setattr(machine_code.fcntl, "flock", flock)
    code = MachineCode()
    code.count(1, compile_policy(BUILTIN[DEFAULT], REGISTRY))
    for thread in threads():
        thread.join()
    assert code.is_loaded


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "machine-code"]


def test_cycle_decides_if_machine_code_cannot_be_cached(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.HETSCHED_COMPILE_AFTER_PODS = 0
    monkeypatch.setattr(code_loader, "can_be_cached", lambda: False)
    code = MachineCode()
    code.count(1, compile_policy(BUILTIN[DEFAULT], REGISTRY))
    for thread in threads():
        thread.join()
    assert not code.is_loaded


def test_informer_process_loads_only_cached_code(monkeypatch: pytest.MonkeyPatch) -> None:
    code = MachineCode()
    monkeypatch.setattr(machine_code, "machine_code", code)
    monkeypatch.setattr(machine_code, "_is_cached", lambda policy: False)
    machine_code.load_cached_code()
    assert not code.is_loaded
    monkeypatch.setattr(machine_code, "_is_cached", lambda policy: True)
    machine_code.load_cached_code()
    assert code.is_loaded


def test_mark_of_cached_code_is_void_for_another_processor_or_source(monkeypatch: pytest.MonkeyPatch) -> None:
    from llvmlite import binding

    policy = compile_policy(BUILTIN[DEFAULT], REGISTRY)
    machine_code.compile_into_cache()
    assert machine_code._is_cached(policy)
    with monkeypatch.context() as other:
        other.setattr(binding, "get_host_cpu_name", lambda: "another")
        assert not machine_code._is_cached(policy)
    mark = machine_code._mark(policy)
    with monkeypatch.context() as other:
        other.setattr(os, "stat", lambda path: SimpleNamespace(st_mtime_ns=1, st_size=1))
        other_source = machine_code._mark(policy)
    assert not other_source.exists()
    os.utime(mark, (1, 1))  # older than the index of the cached code
    assert not machine_code._is_cached(policy)
    machine_code.compile_into_cache()
    assert machine_code._is_cached(policy)


def test_loaded_code_serves_every_cluster() -> None:
    from hetsched.engine.compiled import kernel

    policy = compile_policy(BUILTIN[DEFAULT], REGISTRY)
    code_loader.load(policy)
    place = kernel.loop_of(policy.formulas).place
    compiled = len(place.signatures)
    fleet = [a_node("plain").build(), a_node("cards").gpus(2).build()]
    loop = BatchScheduler(Scheduler(cluster(fleet), policy), expected=10**9)
    assert len(loop.place_first([a_pod(f"a{number}").gpu(number % 2).build() for number in range(4)], 2)) == 4
    assert len(place.signatures) == compiled
