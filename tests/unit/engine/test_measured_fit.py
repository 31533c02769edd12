"""The measured-fit plugin: no resource is used beyond its measured capacity."""

from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.framework.status import SKIP
from tests.builders import a_node, a_pod
from tests.unit.engine.fleet import ask, policy_of, scheduler

NETWORK = "hetsched.io/network-mbps"


def test_expected_and_measured_use_must_fit_together() -> None:
    # 8 CPUs: 5 measured + 3 expected = 8 fits, 6 + 3 = 9 does not; requests (1 CPU each) would fit on both
    nodes = [a_node("a").cpu(8).using(cpu="5"), a_node("b").cpu(8).using(cpu="6")]
    found = ask("measured-fit", a_pod().cpu(1).expecting(cpu="3"), nodes)
    assert found.feasible == ["a"]
    (refusal,) = found.reasons["b"]
    assert (refusal.code, refusal.missing, refusal.resolvable) == ("MeasuredUseTooHigh", ("cpu",), True)
    assert refusal.message == "Insufficient cpu by measured use: the pod is expected to use 3"


def test_network_and_disk_count_too() -> None:
    node = a_node("n").offering(NETWORK, 100).using(cpu="0", **{NETWORK: "60"})
    found = ask("measured-fit", a_pod().expecting(**{NETWORK: "50"}), [node])
    assert found.codes("n") == ["MeasuredUseTooHigh"]
    assert ask("measured-fit", a_pod().expecting(**{NETWORK: "40"}), [node]).feasible == ["n"]


def test_unrequested_resource_does_not_reject() -> None:
    assert ask("measured-fit", a_pod().cpu(0).memory("1Gi"), [a_node("n").cpu(8).using(cpu="9")]).feasible == ["n"]


def test_reserved_share_stays_free() -> None:
    # 10 % of 8 CPUs reserved: 7.2 may be used; 5 + 2 = 7 fits, 5 + 2.5 = 7.5 does not
    node = a_node("n").cpu(8).using(cpu="5")
    params = {"free_percent": 10}
    assert ask("measured-fit", a_pod().expecting(cpu="2"), [node], params=params).feasible == ["n"]
    assert ask("measured-fit", a_pod().expecting(cpu="2500m"), [node], params=params).feasible == []


def test_measured_load_is_not_now_and_a_too_large_pod_never_fits() -> None:
    engine = scheduler([a_node("n").cpu(8).using(cpu="6")], policy="mbcgt")
    assert diagnose(engine, a_pod().cpu(1).expecting(cpu="3").build()).verdict == "not-now"
    assert diagnose(engine, a_pod().cpu(1).expecting(cpu="9").build()).verdict == "never-fits"


def test_unreported_resource_is_no_limit() -> None:
    nodes = [a_node("n").using(cpu="0"), a_node("m").offering(NETWORK, 100).using(cpu="0")]
    assert ask("measured-fit", a_pod().expecting(**{NETWORK: "50"}), nodes).feasible == ["m", "n"]


def test_missing_samples_leave_requests_to_resource_fit() -> None:
    nodes = [a_node("n").cpu(8), a_node("m").cpu(8)]
    for plugins, more, sits_out in (
        (("resource-fit", "measured-fit"), [], True),
        (("resource-fit", "measured-fit"), [a_node("sampled").using(cpu="1")], False),
        (("measured-fit",), [], False),
    ):
        policy = policy_of(*plugins)
        engine = scheduler([*nodes, *more], policy=policy)
        request = engine.state.compile(a_pod().build())
        assert (policy.plugins[-1].instance.pre_filter(request, engine.state) is SKIP) is sits_out
    engine = scheduler(nodes, [a_pod("r").cpu(8).running_on("n")], policy=policy_of("measured-fit"))
    assert engine.schedule(a_pod().cpu(1).build()).node == "m"
