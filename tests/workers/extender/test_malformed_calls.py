"""Every call gets a response or an error with a code; none is an internal error, and nothing is reserved."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

import pytest
from django.db import DatabaseError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetsched.adapters.kubernetes.extender_messages import read_args, read_binding, read_pod, read_preemption
from hetsched.adapters.objects.pods import PodReader, ReferencedObjects
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.inventory.models import Cluster, ClusterKind
from hetsched.placement.models import Pod
from hetsched.scheduling.extender.extender import Extender
from hetsched.scheduling.extender.server import Extenders, verbs
from tests.workers.extender.scene import ApiServer, a_plain_pod

ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
MEMBERS = st.sampled_from(
    [
        "Pod",
        "Nodes",
        "NodeNames",
        "NodeNameToVictims",
        "NodeNameToMetaVictims",
        "PodName",
        "PodNamespace",
        "PodUID",
        "Node",
    ]
)
POD = st.fixed_dictionaries({"metadata": ANY, "spec": ANY}) | ANY
CALLS = st.dictionaries(MEMBERS, ANY | POD, max_size=9) | ANY


def code_of(act: Callable[[], Any]) -> str:
    """Return the error code of an action, empty without an error."""
    try:
        act()
    except InputError as error:
        return error.code
    return ""


@given(CALLS)
def test_calls_are_read_or_refused_with_a_code(call: Any) -> None:
    body = json.dumps(call).encode()
    codes = {
        code_of(lambda: read_args(body).named()),
        code_of(lambda: read_preemption(body).offered()),
        code_of(lambda: read_binding(body)),
    }
    assert codes <= {"", "ExtenderArgsInvalid"}


@given(POD)
def test_pods_are_read_or_refused_with_a_code(pod: Any) -> None:
    reader = PodReader(ReferencedObjects.of(ClusterContent()))
    code = code_of(lambda: read_pod(json.dumps(pod).encode(), reader))
    assert code == "" or code.isalnum()


@pytest.fixture
def ask(live: Cluster, extender: Extender) -> Any:
    known = verbs(Extenders(lambda _: extender))

    def asked(verb: str, call: Any) -> Any:
        answer = known[verb]("live", call if isinstance(call, bytes) else json.dumps(call).encode())
        return json.loads(answer.body)

    return asked


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(CALLS, st.sampled_from(["filter", "prioritize", "preempt", "bind"]))
def test_malformed_calls_neither_fail_nor_assume_pods(ask: Any, call: Any, verb: str) -> None:
    answers: list[Any] = []
    assert code_of(lambda: answers.append(ask(verb, call))) != "ExtenderFailed"
    assert "ExtenderFailed" not in json.dumps(answers)
    assert not Pod.objects.exists()


def test_unknown_nodes_and_long_lists_are_answered_node_by_node(ask: Any) -> None:
    strangers = [f"stranger-{number}" for number in range(20_000)]
    answer = ask("filter", {"Pod": a_plain_pod("p"), "NodeNames": ["amd", *strangers, "amd"]})
    assert set(answer["NodeNames"]) == {"amd"}
    assert len(answer["FailedNodes"]) == len(strangers)
    assert set(answer["FailedNodes"].values()) == {"are not known to hetsched yet"}
    assert ask("filter", {"Pod": a_plain_pod("q"), "NodeNames": []}) == {"NodeNames": []}


def test_whole_nodes_are_returned_unchanged(ask: Any) -> None:
    nodes = [{"metadata": {"name": name, "x": [1.50, "é"]}, "spec": {}} for name in ("risc", "amd", "stranger")]
    call = {"Pod": a_plain_pod("p"), "Nodes": {"metadata": {}, "items": nodes}, "NodeNames": None}
    answer = ask("filter", call)
    assert answer["Nodes"] == {"items": nodes[:2]}
    assert set(answer["FailedNodes"]) == {"stranger"}
    assert {item["Host"] for item in ask("prioritize", call)} == {"risc", "amd", "stranger"}


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        (
            {"metadata": {"annotations": {"hetsched.io/gpu-milli": "many"}}},
            "cannot run a pod with an invalid request",
        ),
        ({"nodeSelector": {"kubernetes.io/hostname": "nowhere"}}, ""),
        ({"cpu": "64"}, ""),
    ],
)
def test_pod_that_never_fits_is_unresolvable_on_every_node(ask: Any, pod: dict[str, Any], reason: str) -> None:
    found = ask("filter", {"Pod": a_plain_pod("p", **pod), "NodeNames": ["amd", "risc"]})
    assert found["NodeNames"] == []
    why = {**found.get("FailedNodes", {}), **found.get("FailedAndUnresolvableNodes", {})}
    assert set(why) == {"amd", "risc"}
    assert all(text and reason in text for text in why.values())


def test_deep_and_broken_json_is_refused(ask: Any) -> None:
    for body in (b"", b"{", b"\xff", b'{"Pod":' + b"[" * 100_000, b'{"Pod": {}, "NodeNames": [1]}', b"null"):
        with pytest.raises(InputError, match="ExtenderArgsInvalid"):
            ask("filter", body)


def test_binding_with_path_names_makes_no_call(ask: Any, api: ApiServer) -> None:
    call = {"PodName": "..", "PodNamespace": "default", "PodUID": "u", "Node": "amd"}
    assert "NameInvalid" in ask("bind", call)["Error"]
    assert "PodGone" in ask("bind", {**call, "PodName": "absent"})["Error"]


def test_rejection_uses_the_error_field_of_the_response(ask: Any, live: Cluster) -> None:
    ours = a_plain_pod("p", schedulerName="hetsched-binpack")
    assert ask("filter", {"Pod": ours, "NodeNames": ["amd"]})["Error"].startswith(
        "hetsched: default/p has schedulerName"
    )
    with pytest.raises(InputError, match="PodIsOurs"):
        ask("prioritize", {"Pod": ours, "NodeNames": ["amd"]})
    Cluster.objects.create(name="second", kind=ClusterKind.KUBERNETES)
    known = Extenders(lambda _: pytest.fail("a cluster was looked up"))
    for name, code in (("", "ClusterAmbiguous"), ("third", "ClusterUnknown")):
        with pytest.raises(InputError, match=code):
            known.of(name)


def test_database_failure_is_counted_as_refused(live: Cluster) -> None:
    class Away:
        def filter(self, args: Any) -> Any:
            raise DatabaseError("no connection")

    answered = verbs(Extenders(lambda _: cast(Extender, Away())))["filter"]
    response = answered("live", json.dumps({"Pod": a_plain_pod("p"), "NodeNames": ["amd"]}).encode())
    assert response.refused
    assert json.loads(response.body)["Error"] == "hetsched: the database does not respond [DatabaseAway]"
