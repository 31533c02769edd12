"""From the filter call to the binding: the chosen node is reserved once, and written with the allocation."""

from __future__ import annotations

import json
from concurrent.futures import Future
from typing import Any

import pytest

from hetsched.adapters.kubernetes.api import ApiFailure
from hetsched.adapters.kubernetes.pods.binding import bind as write
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.observed import Changes, ObservedPod
from hetsched.inventory.models import Cluster, Connection, Sync
from hetsched.placement.actions import Contradiction, apply_changes, reserve_requested
from hetsched.placement.actions.image_platforms import ImageReading, claim_images, record_readings
from hetsched.placement.cluster_snapshot import load_state
from hetsched.placement.models import Decision, Pod, Reservation
from hetsched.placement.queries.invariants import check_invariants
from hetsched.placement.scheduler_cache import cache_of
from hetsched.placement.scheduling_queue.active_queue import active_pods
from hetsched.scheduling import binding_cycle
from hetsched.scheduling.extender import binding
from hetsched.scheduling.extender.extender import Extender
from tests.builders import a_pod
from tests.workers.extender.scene import ApiServer, InThisThread, a_plain_pod, asked, to

ALL = ("amd", "card", "risc")


def refused(act: Any, *arguments: Any) -> str:
    with pytest.raises(InputError) as caught:
        act(*arguments)
    return caught.value.code


def offered(api: ApiServer, name: str, **more: Any) -> dict[str, Any]:
    pod = a_plain_pod(name, **more)
    api.pods[name] = pod
    return pod


def test_shared_gpu_is_reserved_and_written_in_the_binding(extender: Extender, api: ApiServer, live: Cluster) -> None:
    pod = offered(api, "half", metadata={"annotations": {"hetsched.io/gpu-milli": "500"}})
    answer = extender.filter(asked(pod, *ALL))
    assert answer.node_names == ["card"]
    assert set(answer.failed_and_unresolvable_nodes) == {"amd", "risc"}
    extender.bind(to(pod, "card"))
    (binding,) = api.bound
    allocation = json.loads(binding["metadata"]["annotations"]["hetsched.io/allocation"])
    assert [(card["index"], card["milli"]) for card in allocation["gpus"]] == [(0, 500)]
    assert (binding["metadata"]["uid"], allocation["node"]) == ("uid-half", "card")
    row = Pod.objects.get()
    assert (row.state, row.origin, row.policy) == ("bound", "asked", "hetsched")
    assert Decision.objects.get().summary.startswith("default/half placed on card, chosen by scheduler other")
    assert not active_pods(live.pk).exists()
    with cache_of(live.pk).locked_snapshot() as loaded:
        assert loaded.state.digest() == load_state(live.pk).state.digest()
    assert check_invariants() == []


def test_next_answer_includes_the_last_reservation(extender: Extender, api: ApiServer) -> None:
    for number in range(2):
        pod = offered(api, f"whole-{number}", metadata={"annotations": {"oks/gpu-number": "1"}})
        assert extender.filter(asked(pod, *ALL)).node_names == ["card"]
        extender.bind(to(pod, "card"))
    third = offered(api, "whole-2", metadata={"annotations": {"oks/gpu-number": "1"}})
    answer = extender.filter(asked(third, *ALL))
    assert answer.node_names == []
    assert set(answer.failed_nodes) == {"card"}  # a pod there can be preempted
    assert refused(extender.bind, to(third, "card")) == "NodeRefused"
    assert Reservation.objects.filter(active=True).count() == 2


def test_best_score_is_for_the_node_of_our_own_cycle_only(extender: Extender, api: ApiServer) -> None:
    pod = offered(api, "plain")
    scores = {one.host: one.score for one in extender.prioritize(asked(pod, *ALL, "nowhere"))}
    assert set(scores) == {*ALL, "nowhere"}
    assert [name for name, score in scores.items() if score == 10] == ["amd"]
    assert scores["nowhere"] == 0
    assert all(0 <= score <= 10 for score in scores.values())


def test_repeated_binding_is_idempotent(extender: Extender, api: ApiServer) -> None:
    pod = offered(api, "p")
    api.refuses = ApiFailure(0, "Unreachable", "no answer")
    assert refused(extender.bind, to(pod, "amd")) == "BindingUnknown"
    assert Pod.objects.get().state == "binding"  # its binding may still succeed: it keeps its reservation
    assert extender.filter(asked(pod, *ALL)).node_names == ["amd"]
    assert refused(extender.bind, to(pod, "card")) == "PodBookedElsewhere"
    api.refuses = None
    extender.bind(to(pod, "amd"))
    assert Pod.objects.get().state == "bound"
    assert Reservation.objects.filter(active=True).count() == 1
    extender.bind(to(pod, "amd"))
    assert len(api.bound) == 2


def test_rejected_binding_releases_its_reservation_for_a_retry(extender: Extender, api: ApiServer) -> None:
    pod = offered(api, "p")
    api.refuses = ApiFailure(422, "Invalid", "no such node")
    assert refused(extender.bind, to(pod, "amd")) == "BindingRefused"
    assert [row.state for row in Pod.objects.all()] == ["cancelled"]
    assert not Reservation.objects.filter(active=True).exists()
    api.refuses = None
    extender.bind(to(pod, "amd"))
    assert [row.state for row in Pod.objects.order_by("id")] == ["cancelled", "bound"]
    assert check_invariants() == []


def test_unfinished_binding_of_an_extender_is_sent_by_the_workers(
    extender: Extender, api: ApiServer, live: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = offered(api, "p")
    monkeypatch.setattr(extender._threads, "submit", lambda *_: pytest.fail("it died here"))
    with pytest.raises(BaseException, match="it died here"):
        extender.bind(to(pod, "amd"))
    assert Pod.objects.get().state == "binding"
    binding_cycle.record_results(live, [write(api, binding_cycle.binding_requests([Pod.objects.get().pk])[0])])  # type: ignore[arg-type]
    assert Pod.objects.get().state == "bound"
    assert [binding["target"]["name"] for binding in api.bound] == ["amd"]


def test_pods_bound_by_another_scheduler_are_not_changed(extender: Extender, api: ApiServer) -> None:
    pod = offered(api, "p")
    api.pods["p"]["spec"]["nodeName"] = "risc"
    assert refused(extender.bind, to(pod, "amd")) == "PodBoundElsewhere"
    extender.bind(to(pod, "risc"))  # it is bound there already
    api.pods["p"] = {**pod, "metadata": {**pod["metadata"], "uid": "another"}}
    assert refused(extender.bind, to(pod, "amd")) == "PodGone"
    del api.pods["p"]
    assert refused(extender.bind, to(pod, "amd")) == "PodGone"
    assert api.bound == []
    assert not Pod.objects.exists()


def test_node_that_filled_up_is_rejected(extender: Extender, api: ApiServer, live: Cluster) -> None:
    pod = offered(api, "p", cpu="4")
    assert "amd" in (extender.filter(asked(pod, *ALL)).node_names or ())
    spec = a_pod("theirs").cpu(6).having(uid="u", node_name="amd").build()
    seen = ObservedPod("default", "theirs", "u", scheduler_name="x", node_name="amd", phase="Running", spec=spec)
    apply_changes(live.pk, Changes(pods=[seen]), epoch=1)
    assert refused(extender.bind, to(pod, "amd")) == "NodeRefused"
    extender.bind(to(pod, "card"))
    assert check_invariants() == []


def test_cluster_in_shadow_mode_gets_an_error(extender: Extender, api: ApiServer) -> None:
    Connection.objects.update(shadow_of="default-scheduler")
    pod = offered(api, "p")
    for ask in (extender.filter, extender.prioritize):
        assert refused(ask, asked(pod, *ALL)) == "ClusterInShadow"
    assert refused(extender.bind, to(pod, "amd")) == "ClusterInShadow"
    assert api.bound == []
    assert not Reservation.objects.exists()


def test_cluster_out_of_sync_gets_an_error(extender: Extender, api: ApiServer) -> None:
    Sync.objects.update(synced_at=None)
    pod = offered(api, "p")
    for ask in (extender.filter, extender.prioritize):
        assert refused(ask, asked(pod, *ALL)) == "ClusterNotInStep"
    assert refused(extender.bind, to(pod, "amd")) == "ClusterNotInStep"
    assert api.bound == []


def test_own_pods_and_gangs_are_rejected(extender: Extender, api: ApiServer) -> None:
    ours = offered(api, "ours", schedulerName="hetsched")
    assert refused(extender.filter, asked(ours, *ALL)) == "PodIsOurs"
    labels = {
        "pod-group.scheduling.sigs.k8s.io/name": "g", "pod-group.scheduling.sigs.k8s.io/min-available": "2",
    }  # fmt: skip
    answer = extender.filter(asked(offered(api, "member", metadata={"labels": labels}), *ALL))
    assert answer.node_names == []
    assert "only schedulerName hetsched places complete gangs" in answer.failed_and_unresolvable_nodes["amd"]


def test_lost_reservation_race_is_decided_again(
    extender: Extender, api: ApiServer, live: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    rivals = [a_pod(f"rival-{number}").cpu(3).having(uid=f"r{number}", node_name="amd").build() for number in range(2)]

    def late(*arguments: Any, **more: Any) -> Any:
        if rivals:  # another writer is faster, twice: 3 + 3 of 8 CPUs are used then
            spec = rivals.pop()
            seen = ObservedPod("default", spec.name, spec.uid, node_name="amd", phase="Running", spec=spec)
            apply_changes(live.pk, Changes(pods=[seen]), epoch=1)
        return reserve_requested(*arguments, **more)

    monkeypatch.setattr(binding, "reserve_requested", late)
    extender.bind(to(offered(api, "small", cpu="2"), "amd"))
    assert rivals == []
    monkeypatch.setattr(binding, "reserve_requested", lambda *_, **__: (_ for _ in ()).throw(Contradiction("held", 1)))
    assert refused(extender.bind, to(offered(api, "p"), "card")) == "LedgerRefused"
    with cache_of(live.pk).locked_snapshot() as loaded:
        assert loaded.state.digest() == load_state(live.pk).state.digest()
    assert check_invariants() == []


def test_capacity_released_at_that_moment_is_polled_for(
    extender: Extender, api: ApiServer, live: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        extender.bind(to(offered(api, f"whole-{number}", metadata={"annotations": {"oks/gpu-number": "1"}}), "card"))
    slept = []

    def free(seconds: float) -> None:
        slept.append(seconds)
        first = Pod.objects.get(name="whole-0")
        apply_changes(live.pk, Changes(pods_gone=[first.key], stopped={first.uid}), epoch=1)

    monkeypatch.setattr("hetsched.scheduling.extender.extender.time.sleep", free)
    third = offered(api, "whole-2", metadata={"annotations": {"oks/gpu-number": "1"}})
    assert extender.filter(asked(third, *ALL)).node_names == ["card"]
    assert len(slept) == 1
    never = offered(api, "never", cpu="64")
    assert extender.filter(asked(never, *ALL)).node_names == []
    assert len(slept) == 1  # an impossible binding is not retried


def test_filter_waits_for_the_lookup_of_a_new_image(
    extender: Extender, api: ApiServer, live: Cluster, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.HETSCHED_REGISTRIES = ["registry.test"]

    def look(seconds: float) -> None:
        (row,) = claim_images(live.pk, 10)
        record_readings(live.pk, [(row, ImageReading("sha256:" + "0" * 64, ("linux/riscv64",)))])

    monkeypatch.setattr("hetsched.scheduling.extender.extender.time.sleep", look)
    pod = offered(api, "p")
    pod["spec"]["containers"][0]["image"] = "registry.test/job:1"
    assert extender.filter(asked(pod, *ALL)).node_names == ["risc"]
    extender.bind(to(pod, "risc"))
    assert check_invariants() == []


def test_two_pods_are_answered_one_after_the_other(extender: Extender, api: ApiServer) -> None:
    extender.turns._patience_seconds = 0.01
    first, second = offered(api, "first"), offered(api, "second")
    extender.filter(asked(first, *ALL))
    extender.filter(asked(second, *ALL))  # the maximum wait is over
    assert extender.turns._missed == 1
    extender.bind(to(second, "amd"))
    extender.filter(asked(first, *ALL))
    assert extender.turns._missed == 0


def test_repeated_binding_keeps_the_reservation_of_the_first(extender: Extender, api: ApiServer) -> None:
    pod = offered(api, "p")
    api.refuses = ApiFailure(0, "Unreachable", "no answer")
    assert refused(extender.bind, to(pod, "amd")) == "BindingUnknown"
    api.refuses = ApiFailure(422, "Invalid", "no")
    assert refused(extender.bind, to(pod, "amd")) == "BindingUnknown"
    assert Reservation.objects.get(active=True).node.name == "amd"


def test_call_ends_in_time_without_an_answer_of_the_api_server(
    live: Cluster, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    class Unanswered(Future[Any]):
        def result(self, timeout: float | None = None) -> Any:
            waited.append(timeout or 0.0)
            raise TimeoutError

    extender = Extender(live, 8, InThisThread())
    pod = offered(api, "p")
    extender.filter(asked(pod, *ALL))
    monkeypatch.setattr(InThisThread, "submit", lambda *_: Unanswered())
    assert refused(extender.bind, to(pod, "amd")) == "BindingUnknown"
    assert 0 < waited[0] <= 8
    assert Reservation.objects.get(active=True).node.name == "amd"
