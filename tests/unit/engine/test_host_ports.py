"""The host-ports plugin: one port of one address of a node belongs to one pod."""

import pytest

from hetsched.contracts.objects.workload import HostPort
from tests.builders import PodBuilder, a_node, a_pod
from tests.unit.engine.fleet import ask, scheduler

FLEET = [a_node("busy"), a_node("free")]


def holder(name: str, port: int, protocol: str = "TCP", ip: str = "0.0.0.0") -> PodBuilder:
    return a_pod(name).host_port(port, protocol, ip).running_on("busy")


@pytest.mark.parametrize(
    ("held", "asked", "clash"),
    [
        (HostPort(80), HostPort(80), True),
        (HostPort(80), HostPort(81), False),
        (HostPort(80, "TCP"), HostPort(80, "UDP"), False),
        (HostPort(80, "TCP", "127.0.0.1"), HostPort(80, "TCP", "127.0.0.2"), False),
        (HostPort(80, "TCP", "127.0.0.1"), HostPort(80, "TCP", "127.0.0.1"), True),
        (HostPort(80, "TCP", "0.0.0.0"), HostPort(80, "TCP", "127.0.0.1"), True),  # all addresses include this one
        (HostPort(80, "TCP", "127.0.0.1"), HostPort(80, "TCP", "0.0.0.0"), True),
        (HostPort(80, "TCP", ""), HostPort(80, "TCP", "127.0.0.1"), True),  # no address is all addresses
    ],
)
def test_clashes(held: HostPort, asked: HostPort, clash: bool) -> None:
    there = a_pod("holder").shaped(host_ports=(held,)).running_on("busy")
    answer = ask("host-ports", a_pod().shaped(host_ports=(asked,)), FLEET, [there])
    assert answer.fits == {"busy": not clash, "free": True}


def test_conflict_names_the_port_and_is_resolvable() -> None:
    answer = ask("host-ports", a_pod().host_port(80).host_port(443), FLEET, [holder("holder", 443)])
    [refusal] = answer.reasons["busy"]
    assert (refusal.code, refusal.missing, refusal.resolvable) == ("HostPortConflict", ("443/TCP",), True)


def test_pod_without_host_ports_skips_the_filter() -> None:
    assert ask("host-ports", a_pod(), FLEET, [holder("holder", 80)]).skipped


def test_port_is_free_after_its_last_user_ended() -> None:
    # Two pods on different addresses hold port 80; the port is free on all addresses only after both have ended.
    running = [holder("one", 80, ip="127.0.0.1"), holder("two", 80, ip="127.0.0.2")]
    deciding = scheduler([a_node("busy")], running)
    asking = a_pod().host_port(80).build()
    assert deciding.schedule(asking).node is None
    deciding.state.forget("default/one")
    assert deciding.schedule(asking).node is None
    deciding.state.forget("default/two")
    assert deciding.schedule(asking).node == "busy"


def test_pods_with_the_same_port_go_to_different_nodes() -> None:
    deciding = scheduler(FLEET)
    placed = [deciding.schedule(a_pod(f"p{i}").host_port(80).build()).node for i in range(3)]
    assert sorted(filter(None, placed)) == ["busy", "free"]
    assert placed[2] is None
