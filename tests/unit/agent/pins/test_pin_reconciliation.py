"""Reconciliation moves containers to their CPUs step by step and keeps them there while others change."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from hetsched.agent.cri import Runtime
from hetsched.agent.pins import Pinner
from hetsched.agent.tree import Tree
from hetsched.contracts.cpuset import parse_cpuset
from hetsched.contracts.messages.agent_report import KubeletState, PinnedContainer
from hetsched.contracts.messages.signatures import node_key, sign
from tests.agent.fake_runtime import FakeRuntime

KEY = node_key(b"secret", "prod", "n1")


def signed(uid: str, policy: str = "exclusive", epoch: int = 1, key: bytes = KEY, **containers: str) -> str:
    document: dict[str, Any] = {"v": 1, "cpus": ",".join(containers.values()), "policy": policy}
    document |= {"containers": containers, "zones": [{"name": "node-1", "cpus": document["cpus"]}]}
    document |= {"uid": uid, "node": "n1", "epoch": epoch}
    return json.dumps(document | {"sig": sign(document, key)})


@pytest.fixture(params=[1, 2, 0], ids=["v1", "v2", "no-files"])
def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FakeRuntime]:
    runtime = FakeRuntime(tmp_path, cgroup=request.param)
    runtime.zone(0, "0-31")
    runtime.zone(1, "32-63")
    runtime.start()
    yield runtime
    runtime.stop()


Agent = Callable[..., Pinner]


@pytest.fixture
def agent(runtime: FakeRuntime, tmp_path: Path) -> Iterator[Agent]:
    """Return a function that starts a new agent and ends the previous one."""
    running: list[Pinner] = []

    def start(learns: bool = True, **more: Any) -> Pinner:
        if running:
            running.pop().close()
        pinner = Pinner("n1", Runtime(runtime.socket), tmp_path / "state", Tree(runtime.root), **more)
        running.append(pinner)
        if learns:
            pinner.learn("prod", KEY, [])
        return pinner

    yield start
    for pinner in running:
        pinner.close()


def drifts(report: tuple[PinnedContainer, ...]) -> dict[str, str]:
    return {f"{container.pod_uid}/{container.container}": container.drift for container in report}


def codes(pinner: Pinner) -> list[str]:
    return [problem.code for problem in pinner.problems]


def test_pods_get_the_signed_cpus_and_others_the_rest(runtime: FakeRuntime, agent: Agent) -> None:
    (other,) = runtime.pod("other")
    a, side = runtime.pod("a", signed("a", main="2-5"), containers=("main", "side"))
    (b,) = runtime.pod("b", signed("b", "immovable", main="8-9"))
    (c,) = runtime.pod("c", signed("c", "numa", main="32-40"))
    report = agent().step(0)
    assert [runtime.on(one) for one in (a, side, b, c, other)] == ["2-5", "0-1,6-63", "8-9", "32-63", "0-1,6-63"]
    assert report == (
        PinnedContainer("a", "main", "2-5", "2-5", "agent"),
        PinnedContainer("b", "main", "8-9", "8-9", "agent"),
        PinnedContainer("c", "main", "32-63", "32-63", "agent"),
    )


def test_current_cpuset_is_not_written_again(runtime: FakeRuntime, agent: Agent, tmp_path: Path) -> None:
    runtime.pod("a", signed("a", main="2-5"))
    runtime.pod("other")
    pinner = agent()
    pinner.step(0)
    written, inode = list(runtime.written), (tmp_path / "state/pins").stat().st_ino
    for now in (1, 20, 40):
        assert drifts(pinner.step(now)) == {"a/main": ""}
    assert (runtime.written, (tmp_path / "state/pins").stat().st_ino) == (written, inode)


def test_ordinary_pods_are_unchanged_without_pins(runtime: FakeRuntime, agent: Agent) -> None:
    for number in range(20):
        runtime.pod(f"p{number}")
    pinner = agent()
    assert pinner.step(0) == ()
    asked = runtime.calls
    pinner.step(1)
    # Only the two lists: containers on shared CPUs are checked once in a while.
    assert (runtime.written, runtime.calls - asked) == ([], 2)


def test_exclusive_cpus_have_one_container_after_any_write(runtime: FakeRuntime, agent: Agent) -> None:
    own = {runtime.pod(f"p{n}", signed(f"p{n}", main=f"{4 * n}-{4 * n + 3}"))[0] for n in range(1, 8)}
    for n in range(10):
        runtime.pod(f"other{n}")
    placed: set[str] = set()
    overlaps = []

    def look() -> None:
        (moved, _), now = (
            runtime.written[-1],
            {container: parse_cpuset(runtime.on(container)) for container in runtime.containers},
        )
        placed.intersection_update(now)
        if moved in own:
            placed.add(moved)
            # When a container gets its exclusive CPUs, only containers that still wait for theirs may be there.
            overlaps.extend(one for one in now if one not in own and now[one] & now[moved])
        overlaps.extend((one, other) for one in placed for other in placed if one < other and now[one] & now[other])

    runtime.on_write = look
    pinner = agent()
    pinner.step(0)
    runtime.end("p3")
    (late,) = runtime.pod("late", signed("late", main="12-13"))
    own.add(late)
    pinner.step(1)
    assert (runtime.on(late), len(placed), overlaps) == ("12-13", 7, [])


def test_restarted_container_gets_the_same_cpus(runtime: FakeRuntime, agent: Agent) -> None:
    (a,) = runtime.pod("a", signed("a", main="2-5"))
    pinner = agent()
    pinner.step(0)
    runtime.end_container(a)
    (other,) = runtime.pod("other")
    pinner.step(1)
    assert runtime.on(other) == "0-1,6-63"  # a's CPUs stay a's until then
    again = runtime.container("a", running=False)
    pinner.step(2)
    assert runtime.sets[again] == "2-5"  # before it runs


def test_cpus_of_an_ended_pod_are_shared_again(runtime: FakeRuntime, agent: Agent) -> None:
    (other,) = runtime.pod("other")
    runtime.pod("a", signed("a", main="2-5"))
    pinner = agent()
    pinner.step(0)
    runtime.end("a")
    assert pinner.step(1) == ()
    assert runtime.on(other) == "0-63"


@pytest.mark.parametrize("pinned", [True, False])
def test_foreign_change_is_reverted(runtime: FakeRuntime, agent: Agent, pinned: bool) -> None:
    (a,), (other,) = runtime.pod("a", signed("a", main="2-5")), runtime.pod("other")
    pinner = agent()
    pinner.step(0)
    moved = a if pinned else other
    runtime.put(moved, "0-63")
    pinner.step(12)
    assert (runtime.on(a), runtime.on(other)) == ("2-5", "0-1,6-63")


def test_immovable_containers_are_not_moved_by_a_later_grant(runtime: FakeRuntime, agent: Agent) -> None:
    (a,) = runtime.pod("a", signed("a", "immovable", main="2-3"))
    pinner = agent()
    pinner.step(0)
    later = [("a", signed("a", "immovable", 2, main="6-7"))]
    pinner.learn("prod", KEY, later)
    assert drifts(pinner.step(1)) == {"a/main": "the CPU policy is immovable, so the container keeps CPUs 2-3"}
    started = agent()
    started.learn("prod", KEY, later)
    started.step(2)
    assert runtime.on(a) == "2-3"
    runtime.end_container(a)
    again = runtime.container("a")
    started.step(3)
    assert runtime.on(again) == "6-7"


def test_without_a_key_nothing_is_moved(runtime: FakeRuntime, agent: Agent) -> None:
    (a,) = runtime.pod("a", signed("a", main="2-5"))
    runtime.put(a, "7")
    pinner = agent(learns=False)
    assert pinner.step(0) == ()
    assert (runtime.written, codes(pinner)) == ([], ["KeyUnknown"])


@pytest.mark.parametrize(
    "said",
    [
        signed("b", main="2-5"),
        signed("a", main="2-5", key=node_key(b"secret", "prod", "n2")),
        signed("a", main="2-5").replace("2-5", "0-63"),
        '{"v":1,"uid":"a","node":"n1","epoch":9,"policy":"exclusive","containers":{"main":"2-5"}}',
    ],
)
def test_unsigned_allocation_moves_no_container(runtime: FakeRuntime, agent: Agent, said: str) -> None:
    runtime.pod("a", said)
    pinner = agent()
    assert pinner.step(0) == ()
    assert (runtime.written, len(pinner.problems)) == ([], 1)


def test_pods_without_an_annotation_get_the_answered_allocation(runtime: FakeRuntime, agent: Agent) -> None:
    (a,) = runtime.pod("a")
    pinner = agent()
    pinner.learn("prod", KEY, [("a", signed("a", main="2-5"))])
    pinner.step(0)
    assert runtime.on(a) == "2-5"
    agent(learns=False).step(1)  # an agent that gets no new allocations
    assert runtime.on(a) == "2-5"


def test_lower_epoch_displaces_no_container(runtime: FakeRuntime, agent: Agent) -> None:
    (new,) = runtime.pod("new", signed("new", epoch=7, main="2-3"))
    pinner = agent()
    pinner.step(0)
    (old,) = runtime.pod("old", signed("old", epoch=6, main="3-4"))
    assert drifts(pinner.step(1)) == {"new/main": "", "old/main": "CPUs 3 belong to pod new"}
    assert (runtime.on(new), runtime.on(old)) == ("2-3", "0-1,4-63")


def test_restarted_agent_restores_cpusets(runtime: FakeRuntime, agent: Agent) -> None:
    (a,) = runtime.pod("a", signed("a", main="2-5"))
    agent().step(0)
    runtime.put(a, "0-63")
    assert drifts(agent(learns=False).step(1)) == {"a/main": ""}
    assert runtime.on(a) == "2-5"


@pytest.mark.parametrize("damage", [b"", b"x", b"0" * 64 + b"\n{}", None])
def test_damaged_state_file_is_replaced(
    runtime: FakeRuntime, agent: Agent, tmp_path: Path, damage: bytes | None
) -> None:
    (a,) = runtime.pod("a", signed("a", main="2-5"))
    agent().step(0)
    file = tmp_path / "state/pins"
    file.write_bytes(damage if damage is not None else file.read_bytes()[:-1])
    pinner = agent(learns=False)
    assert pinner.step(1) == ()  # it waits for the key, and moves no container until then
    assert (codes(pinner), runtime.on(a)) == (["PinsForgotten", "KeyUnknown"], "2-5")
    pinner.learn("prod", KEY, [])
    runtime.put(a, "0-63")
    pinner.step(2)
    assert runtime.on(a) == "2-5"
    assert drifts(agent(learns=False).step(3)) == {"a/main": ""}


def test_file_is_readable_by_its_owner_only(runtime: FakeRuntime, agent: Agent, tmp_path: Path) -> None:
    runtime.pod("a", signed("a", main="2-5"))
    agent().step(0)
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "state", tmp_path / "state/pins")] == [0o700, 0o600]


def test_agent_without_a_state_file_pins_too(runtime: FakeRuntime, agent: Agent, tmp_path: Path) -> None:
    (a,) = runtime.pod("a", signed("a", main="2-5"))
    (tmp_path / "state").write_text("no folder")
    pinner = agent()
    assert drifts(pinner.step(0)) == {"a/main": ""}
    assert (runtime.on(a), codes(pinner)[-1]) == ("2-5", "PinsNotKept")


def test_second_agent_pins_nothing(runtime: FakeRuntime, agent: Agent, tmp_path: Path) -> None:
    (a,) = runtime.pod("a", signed("a", main="2-5"))
    agent().step(0)
    second = Pinner("n1", Runtime(runtime.socket), tmp_path / "state", Tree(runtime.root))
    runtime.put(a, "0-63")
    assert second.step(1) == ()
    assert (codes(second), runtime.on(a)) == (["AnotherAgent"], "0-63")
    second.close()


def test_choice_of_a_pinning_kubelet_is_reported(runtime: FakeRuntime, agent: Agent) -> None:
    predicted = json.loads(signed("a", "static"))
    document = {name: value for name, value in predicted.items() if name not in ("sig", "cpus", "containers", "zones")}
    document |= {"predicted": [{"name": "node-0", "cpus": "2-3"}, {"name": "node-1", "cpus": "32"}]}
    runtime.pod("a", json.dumps(document | {"sig": sign(document, KEY)}))
    runtime.pod("b", signed("b", main="8-9"))
    kubelet = KubeletState(
        cpu_manager_policy="static", exclusive={"a": {"main": "2-3", "side": "32"}, "foreign": {"x": "5"}}
    )
    report = agent(kubelet=lambda: kubelet).step(0)
    assert runtime.written == []
    assert report == (
        PinnedContainer("a", "main", "2-3,32", "2-3", "kubelet"),
        PinnedContainer("a", "side", "2-3,32", "32", "kubelet"),
        PinnedContainer("foreign", "x", "", "5", "kubelet"),
    )
    kubelet = KubeletState(cpu_manager_policy="static", exclusive={"a": {"main": "4-6"}})
    assert drifts(agent(kubelet=lambda: kubelet).step(1)) == {"a/main": "the kubelet assigned CPUs 4-6 to the pod"}


def test_unknown_kubelet_policy_moves_no_container(runtime: FakeRuntime, agent: Agent) -> None:
    runtime.pod("a", signed("a", main="2-5"))
    pinner = agent(kubelet=KubeletState)
    assert (pinner.step(0), runtime.written, codes(pinner)) == ((), [], ["KubeletUnknown"])


def test_strictly_reserved_cpus_are_not_shared(runtime: FakeRuntime, agent: Agent) -> None:
    (other,) = runtime.pod("other")
    kubelet = KubeletState(
        cpu_manager_policy="none", reserved_cpus="0,32", cpu_manager_options={"strict-cpu-reservation": "true"}
    )
    agent(kubelet=lambda: kubelet).step(0)
    assert runtime.on(other) == "1-31,33-63"


def test_lost_runtime_is_reported_and_found_again(runtime: FakeRuntime, agent: Agent) -> None:
    (a,) = runtime.pod("a", signed("a", main="2-5"))
    pinner = agent()
    pinner.step(0)
    runtime.stop()
    report = pinner.step(1)
    assert (report[0].actual, codes(pinner)) == (None, ["RuntimeAway"])
    runtime.put(a, "0-63")
    runtime.start()
    assert drifts(pinner.step(2)) == {"a/main": ""}
    assert runtime.on(a) == "2-5"


@pytest.mark.parametrize("method", ["ListPodSandbox", "ListContainers", "ContainerStatus", "UpdateContainerResources"])
@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN, grpc.StatusCode.NOT_FOUND])
def test_pinner_survives_runtime_failures(
    runtime: FakeRuntime, agent: Agent, method: str, code: grpc.StatusCode
) -> None:
    (a,), (other,) = runtime.pod("a", signed("a", main="2-5")), runtime.pod("other")
    pinner = agent()
    runtime.fail = {method: code}
    pinner.step(0)
    runtime.fail = {}
    pinner.step(1)
    assert (runtime.on(a), runtime.on(other)) == ("2-5", "0-1,6-63")


@pytest.mark.parametrize("code", [grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED])
def test_unmovable_container_does_not_block_others(runtime: FakeRuntime, agent: Agent, code: grpc.StatusCode) -> None:
    (a,), (b,) = runtime.pod("a", signed("a", main="2-5")), runtime.pod("b", signed("b", main="6-7"))
    (other,) = runtime.pod("other")
    runtime.fail = {f"UpdateContainerResources {b}": code}
    pinner = agent()
    report = drifts(pinner.step(0))
    assert (runtime.on(a), runtime.on(other), codes(pinner)) == ("2-5", "0-1,8-63", ["NotPinned"])
    assert (report["a/main"], report["b/main"][:31]) == ("", "the runtime rejected CPUs 6-7: ")
    runtime.fail = {}
    assert drifts(pinner.step(1)) == {"a/main": "", "b/main": ""}


def test_other_containers_stay_without_shared_cpus(runtime: FakeRuntime, agent: Agent) -> None:
    (a,), (other,) = runtime.pod("a", signed("a", main="0-63")), runtime.pod("other")
    pinner = agent()
    assert drifts(pinner.step(0)) == {"a/main": ""}
    assert (runtime.on(a), runtime.on(other), codes(pinner)) == ("0-63", "0-63", ["NothingShared"])


def test_odd_ids_of_containers_lead_nowhere(runtime: FakeRuntime, agent: Agent) -> None:
    runtime.pod("a", signed("a", main="2-5"))
    for odd in ("../../../etc", "a" * 63, "A" * 64, ""):
        from hetsched.agent.rpc import cri_pb2

        metadata = cri_pb2.ContainerMetadata(name="main")
        runtime.containers[odd] = cri_pb2.Container(
            id=odd, pod_sandbox_id=runtime.sandboxes["a"].id, metadata=metadata, state=cri_pb2.CONTAINER_RUNNING
        )
    assert len(agent().step(0)) == 1
    assert len(runtime.written) == 1
